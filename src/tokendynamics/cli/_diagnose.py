"""``tokendynamics diagnose``: audit, trace, verdict and report of one model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
from click.core import ParameterSource
from rich.text import Text

from tokendynamics.cli._interrupted import PAGE, Kept, says_what_is_kept
from tokendynamics.cli._options import Counting, Limits, Loading, OutFolder, Results, as_file_name, check_writable
from tokendynamics.cli._prompts import Cutting, Prompts, named_prompts
from tokendynamics.cli._signature import VARIANTS, Layers, Option, Positive, Variants, command
from tokendynamics.cli._terminal import Console, command_line, table
from tokendynamics.words import count, fixed, number, plural

if TYPE_CHECKING:
    import xarray as xr

    from tokendynamics.cli._output import Output
    from tokendynamics.diagnosis import Diagnosis

_COLUMNS = (
    "κ′ is the within-{noun} similarity, on which most states rest; cosine the mean over pairs of tokens; E is 1 − "
    "mean |cosine| with the first token; rank the effective rank of tokens scaled to length 1; norm the median; "
    "massive how many tokens are left out."
)
_MOST_ROWS = 12


def _as_baseline(context: click.Context, parameter: click.Parameter, value: bool | None) -> str | None:
    """Return what `tokendynamics.diagnose` calls it."""
    del context, parameter
    return "auto" if value is None else "untrained" if value else None


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """What is measured, named as the arguments of `tokendynamics.diagnose`.

    Attributes:
        value: The value map V of the theory: W_V as in the papers' tables, or W_V W_O summed over heads.
        fold_norms: Whether to fold the gain of the norm before attention into W_Q, W_K and W_V. The papers' tables do
            not.  [default: fold where there is such a norm]
        singular: How A = W (V^T)^-1 is defined where V is singular.
        levers: Weaken parts to measure which of them make the tokens agree: about 15 passes of each prompt, with
            gradients.
        heads: Remove attention heads one at a time to measure which of them make the tokens agree.
        directions: Measure which directions the tokens share, what writes them and which tokens attention brings them
            from: about one pass of each prompt.
        remedies: Also try remedies without training: scaled updates and attention logits, λA, a direction removed.
        joint: Also try sets of parts and heads together: about 40 passes of each prompt.
        budget: Largest rise of the loss in nats at which a change is recommended.
        baseline: Also trace the same architecture with initial weights on the same prompts, to say whether the
            similarity is usual.  [default: where there is such a network]
        passes: Also run the blocks this many times on their own output.
        weights: With --passes: the network's own weights, weights redrawn for each pass, or their law (much faster).
        variants: With --passes: the variants of the network that are run.
        layers: Layers to audit, such as 1-10,30; tokens are traced through all layers.
    """

    value: Literal["V", "VO"] = "VO"
    fold_norms: Annotated[bool | None, Option("--fold-norms/--keep-norms")] = None
    singular: Literal["undefined", "pinv"] = "undefined"
    levers: bool = True
    heads: bool = True
    directions: bool = True
    remedies: bool = False
    joint: bool = False
    budget: Annotated[float, Option(type=click.FloatRange(min=0.0))] = 0.02
    baseline: Annotated[Any, Option("--baseline/--no-baseline", is_flag=True, callback=_as_baseline)] = None
    passes: Positive | None = None
    weights: Literal["fixed", "resample", "law"] = "fixed"
    variants: Annotated[Any, Option(type=Variants(), metavar="NAMES")] = VARIANTS
    layers: Annotated[Any, Option(type=Layers())] = None

    def __post_init__(self) -> None:
        """Refuse options of repeated passes without --passes."""
        context = click.get_current_context()
        for name in ("weights", "variants"):
            if self.passes is None and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--{name} needs repeated passes: add --passes N, or remove --{name}")


@command("diagnose")
@says_what_is_kept
def diagnose_command(
    model: str,
    *,
    texts: Prompts,
    cutting: Cutting,
    images: Annotated[Path | None, Option(type=click.Path(exists=True, file_okay=False, path_type=Path))] = None,
    measuring: Measuring,
    counting: Counting,
    threads: Positive | None = None,
    loading: Loading,
    limits: Limits,
    out: OutFolder | None = None,
    results: Results,
    kept: Kept,
) -> int:
    """Diagnose where a model's tokens go, and write a report.

    MODEL is a built-in name (smollm2, minilm), a folder with config.json and safetensors, a .gguf file, a hub id,
    or random:NAME[:SEED] for untrained weights. Without prompts it reads fourteen short default texts of several kinds
    and languages. For results about your use of the model, pass a dozen or more texts of that kind.

    Options:
        images: Folder of images for a vision network; each image is a prompt.
        threads: CPU threads; two are often slower than one.
        out: Folder of the results.  [default: diagnosis-MODEL]
    """
    prompts = named_prompts(**vars(texts))
    if prompts and images:
        raise click.UsageError("expected either texts or --images, got both")
    check_writable(out)

    from tokendynamics.cli._output import Output, saved
    from tokendynamics.diagnosis import diagnose
    from tokendynamics.diagnosis.result import WRITER, data_file_names
    from tokendynamics.pretrained import load
    from tokendynamics.provenance.whole import check_free
    from tokendynamics.results.tables import check_texts

    check_texts(prompts, results.data_format)
    output = Output(results.as_json, limits.quiet, results.markdown)
    entries = (*data_file_names(results.data_format), PAGE)
    if out is not None:
        check_free(out, entries, WRITER, overwrite=results.overwrite, argument="--out")
    kept.models([model])
    output.say(f"Loading {model}")
    with output.progress() as progress:
        ckpt = load(model, **vars(loading), progress=progress)
    folder = out or Path(f"diagnosis-{as_file_name(ckpt.name)}")
    check_free(folder, entries, WRITER, overwrite=results.overwrite, argument="--out")
    kept.results(folder)
    output.note_repeated(prompts or {})
    with output.progress() as progress:
        chosen = {**vars(measuring), **vars(counting), **vars(cutting), "chat": texts.chat, "threads": threads}
        diagnosis = diagnose(ckpt, images or prompts, **chosen, command=command_line(), progress=progress)
    diagnosis, undrawn = saved(diagnosis, folder, results)
    show(output, diagnosis, None if undrawn else folder / PAGE)
    code = limits.code_for([(ckpt.name, diagnosis.verdict, diagnosis.trace)])
    if undrawn:
        raise undrawn
    return code


def show(output: Output, diagnosis: Diagnosis, report: Path | None) -> None:
    """Print the verdict, a table of layers, and the path of the report, or the form that was asked for.

    Args:
        output: Says which form.
        diagnosis: What is printed.
        report: The page; None if it could not be drawn.
    """
    import numpy as np

    from tokendynamics.cli._output import UNDRAWN
    from tokendynamics.diagnosis.result import deeper_in_words, further_in_words, summary
    from tokendynamics.diagnosis.verdict import mean_over_prompts

    if output.in_a_form(diagnosis, summary(diagnosis), report):
        return
    model, console = diagnosis.model, Console(highlight=False)
    heads = f"{plural(model['heads'], 'head')} × " if model["heads"] else ""  # 0 where no attention can be read
    heading = f"{model['name']}: {plural(model['layers'], 'layer')} × {heads}dim {model['dim']}"
    console.print(Text(f"\n{heading}, {count(model['parameters'])} parameters\n", style="bold"))
    for name, text in diagnosis.verdict.lines:
        console.print(Text(f"{name}: ", style="bold").append(Text(text, style="not bold")), soft_wrap=False)
    console.print()
    for text in further_in_words(diagnosis):
        console.print(Text("• ").append(text), soft_wrap=False)
    if diagnosis.deeper is not None:
        first, *others = deeper_in_words(diagnosis)
        console.print(Text("\nDeeper: ", style="bold").append(Text(first, style="not bold")))
        for sentence in others:
            console.print(Text("• ").append(sentence), soft_wrap=False)
    console.print()
    averaged = mean_over_prompts(diagnosis.trace)
    last = averaged.sizes["layer"] - 1
    texts = plural(diagnosis.trace.sizes["prompt"], diagnosis.trace.attrs["prompt_noun"])
    columns = ("layer", "κ′", "cosine", "E", "rank", "norm", "massive", "state")
    title = f"Mean over {texts}, without massive tokens except in E"
    shown = table(*columns, left=("state",), title=title)
    for layer in sorted({round(float(place)) for place in np.linspace(0, last, min(last + 1, _MOST_ROWS))}):
        site = averaged.sel(layer=layer, site="feed_forward")
        effect = "" if layer == 0 else diagnosis.verdict.layers[layer - 1]
        shown.add_row(str(layer), *_cells(site, averaged.massive_count[layer].item()), effect)
    final = averaged.sel(layer=last, site="final_norm")
    if not np.isnan(final.norm_median.sel(sinks="kept")):
        shown.add_row("norm", *_cells(final, None), diagnosis.verdict.final_norm or "")
    console.print(shown)
    console.print(Text(_COLUMNS.format(noun=diagnosis.trace.attrs["prompt_noun"])))
    console.print(Text(f"\nReport: {report or UNDRAWN}\nData:   {', '.join(diagnosis.files) or 'beside it'}"))


def _cells(site: xr.Dataset, sinks: float | None) -> list[str]:
    kept, removed = site.sel(sinks="kept"), site.sel(sinks="removed")
    return [
        fixed(float(removed.consensus_relative), 3),
        fixed(float(removed.mean_pair_cosine), 3),
        fixed(float(kept.consensus_first), 3),
        fixed(float(removed.effective_rank_unit_rows)),
        number(float(removed.norm_median)),
        "" if sinks is None else fixed(sinks, 1),
    ]
