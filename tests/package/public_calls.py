"""Every public function outside models with arguments that are right, and the kind of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr

import tokendynamics as td
from tokendynamics import attention, circuits, figures, modules, observables, spectra, theorems
from tokendynamics.circuits import PairTask, constructions, evidence, functionals, landscape, learning, logic
from tokendynamics.circuits._task import category_law
from tokendynamics.circuits._transformer import shift
from tokendynamics.circuits.constructions.solutions import by_pair, pair_order
from tokendynamics.circuits.landscape.classification import continue_descent, find_symmetries
from tokendynamics.circuits.landscape.softmax_positions import stall
from tokendynamics.circuits.learning.model import design
from tokendynamics.modules.language_model import LanguageModelConfig, vocabulary_of, word_tokenizer
from tokendynamics.modules.vision import VisionConfig
from tokendynamics.observables.summary import summarize
from tokendynamics.spaces import remark_5_1_projection
from tokendynamics.specification.examples import example_text
from tokendynamics.spectra.signs import compress
from tokendynamics.spectra.value_map import value_spectrum_of_factors
from tokendynamics.sweeps import fractions, open_store, parse_plan, report, sweep
from tokendynamics.training import Multipliers

Kind = Literal["array", "array or none", "number", "integer", "flag", "choice", "text", "ours", "any"]

X = np.array([[1.0, 0.2], [0.5, 0.8], [0.3, 0.9]])
QK = np.array([[1.0, 0.2], [0.3, -0.5]])
OV = np.array([[0.5, -0.1], [0.2, 0.7]])
TIMES = np.linspace(0.0, 1.0, 3)
ATTENTION = td.Attention(QK, OV)
FLOW = td.Flow(ATTENTION, td.Sphere())
RUN = td.simulate(FLOW, X, TIMES)
TASK = PairTask([[1.0, -2.0], [3.0, 4.0]], positions=3)
SWEPT = xr.Dataset(
    {
        name: (("scale", "tokens", "draw"), np.zeros((2, 2, 3), dtype=np.int8))
        for name in ("outcome", "status", "tries")
    },
    {"scale": [0.5, 1.0], "tokens": [2, 3]},
)
MODEL = constructions.solution_2(TASK)
ON_POSITIONS = landscape.PositionsOnly([0.5, 0.5], 3)


@dataclass(frozen=True)
class Call:
    """A function, arguments that it takes, and the kind of each."""

    function: Callable[..., Any]
    arguments: Mapping[str, tuple[Any, Kind]]

    def __call__(self, **changed: Any) -> Any:
        values = {name: value for name, (value, _) in self.arguments.items()}
        return self.function(**{**values, **changed})


def _call(function: Callable[..., Any], **arguments: tuple[Any, Kind]) -> Call:
    return Call(function, arguments)


def _of_x(name: str, **further: tuple[Any, Kind]) -> Call:
    return _call(getattr(observables, name), x=(X, "array"), **further)


_QK: tuple[Any, Kind] = (QK, "array")

OBSERVABLES: dict[str, Call] = {
    **{name: _of_x(name) for name in ("norms", "agreement_with_first", "mean_pair_cosine", "hemisphere")},
    "rank_one_distance": _of_x("rank_one_distance"),
    "summarize": _call(summarize, x=(X, "array")),
    **{name: _of_x(name, geometry=("euclidean", "choice")) for name in ("diameter", "pairwise_distances")},
    "clusters": _of_x("clusters", angle=(0.1, "number")),
    "consensus": _of_x("consensus", reference=(0, "integer"), signed=(False, "flag")),
    "coordinate_along": _of_x("coordinate_along", direction=([1.0, 0.0], "array")),
    "direction_deficit": _of_x(
        "direction_deficit", direction=([1.0, 0.0], "array"), metric=(np.eye(2), "array or none")
    ),
    "hemisphere_function": _of_x(
        "hemisphere_function", direction=([1.0, 0.0], "array"), metric=(np.eye(2), "array or none")
    ),
    "effective_rank": _of_x("effective_rank", unit_rows=(False, "flag"), exponent=(2, "number")),
    "stable_rank": _of_x("stable_rank", unit_rows=(False, "flag")),
    "first_token_function": _call(observables.first_token_function, agreement=([0.5], "array")),
    **{
        name: _of_x(name, qk=_QK)
        for name in ("potential", "log_potential", "interaction_energy", "log_interaction_energy")
    },
    "quadratic_form_rate_bound": _of_x("quadratic_form_rate_bound", qk=_QK),
    **{
        name: _of_x(name, qk=_QK, normalization=("paper", "choice"), causal=(False, "flag"))
        for name in ("interaction_sums", "log_interaction_sums")
    },
    **{name: _of_x(name, u=(X, "array"), qk=_QK) for name in ("log_interaction", "log_interaction_gradient")},
    **{name: _of_x(name, matrix=_QK) for name in ("quadratic_form", "pair_quadratic_form")},
    **{
        name: _of_x(name, matrix=_QK, velocity=(X, "array"))
        for name in ("quadratic_form_rate", "pair_quadratic_form_rate")
    },
    "riemannian_metric": _of_x(
        "riemannian_metric", first=(X, "array"), second=(X, "array"), qk=_QK, normalization=("paper", "choice")
    ),
    "wendel_probability": _call(
        observables.wendel_probability, tokens=(5, "integer"), dim=(3, "integer"), formula=("corrected", "choice")
    ),
}

_FACTORS: dict[str, tuple[Any, Kind]] = {"left": (X, "array"), "right": (X, "array")}
SPECTRA: dict[str, Call] = {
    "inertia": _call(spectra.inertia, matrix=_QK, tolerance=(0.1, "number")),
    "low_rank_eigenvalues": _call(spectra.low_rank_eigenvalues, **_FACTORS),
    "product_eigenvalues": _call(spectra.product_eigenvalues, **_FACTORS),
    "regime": _call(spectra.regime, qk=_QK, ov=(OV, "array")),
    "value_spectrum": _call(spectra.value_spectrum, matrix=_QK),
    "value_spectrum_of_factors": _call(
        value_spectrum_of_factors, left=(torch.tensor(X), "array"), right=(torch.tensor(X), "array")
    ),
    "balance": _call(spectra.balance, eigenvalues=(torch.tensor([1.0, -2.0]), "array")),
    "compress": _call(compress, left=(torch.tensor(X), "array"), right=(torch.tensor(X), "array")),
}

_POINT: dict[str, tuple[Any, Kind]] = {"x": (X, "array"), "t": (0.0, "number")}
FLOWS: dict[str, Call] = {
    "Attention": _call(
        td.Attention,
        qk=_QK,
        ov=(OV, "array"),
        causal=(False, "flag"),
        weights=("softmax", "choice"),
        normalization=("plain", "choice"),
        positions=(None, "any"),
    ),
    "Attention.logits": _call(ATTENTION.logits, **_POINT),
    "Attention.pattern": _call(ATTENTION.pattern, **_POINT),
    "Sinusoidal": _call(
        td.Sinusoidal,
        matrix=_QK,
        amplitude=(1.0, "array"),
        frequency=(1.0, "array"),
        phase=(0.0, "array"),
        absolute=(False, "flag"),
    ),
    "Sinusoidal.matrix_at": _call(td.Sinusoidal(QK, 1.0, 1.0, 0.0).matrix_at, t=(0.0, "number")),
    "Periodic": _call(td.Periodic, matrices=([QK, OV], "array"), period=(2.0, "number")),
    "Periodic.matrix_at": _call(td.Periodic([QK, OV], 2.0).matrix_at, t=(0.0, "number")),
    "AbsolutePositions": _call(td.AbsolutePositions, table=(X, "array")),
    "AbsolutePositions.sinusoidal": _call(
        td.AbsolutePositions.sinusoidal, tokens=(3, "integer"), dim=(2, "integer"), base=(100.0, "number")
    ),
    "RotaryPositions": _call(
        td.RotaryPositions,
        query=_QK,
        key=(OV, "array"),
        base=(100.0, "number"),
        scale=(1.0, "number"),
        frequencies=([1.0], "array or none"),
    ),
    "Normalized": _call(td.Normalized, scheme=("mix", "choice"), switch=(1.0, "number"), radius=(1.0, "number")),
    "Normalized.at_radius": _call(td.Normalized("pre").at_radius, x=(X, "array"), radius=(2.0, "array")),
    "Ellipsoid": _call(td.Ellipsoid, metric=(np.eye(2), "array")),
    **{
        f"{type(space).__name__}.{name}": _call(getattr(space, name), **arguments)
        for space in (td.Free(), td.Sphere(), td.Ellipsoid([[2.0, 0.0], [0.0, 1.0]]), td.Normalized("peri"))
        for name, arguments in {
            "project": {"x": (X, "array")},
            "tangent": {"y": (X, "array"), "vectors": (X, "array")},
            "distance": {"x": (X, "array"), "y": (X, "array")},
            "defect": {"y": (X, "array")},
            "sample": {
                "tokens": (3, "integer"),
                "dim": (2, "integer"),
                "systems": ((2,), "ours"),
                "seed": (0, "integer"),
            },
            "sample_hemisphere": {"tokens": (3, "integer"), "direction": ([1.0, 0.0], "array"), "seed": (0, "integer")},
        }.items()
    },
    "remark_5_1_projection": _call(remark_5_1_projection, y=(X, "array"), vectors=(X, "array"), ov=(OV, "array")),
    "Flow": _call(
        td.Flow, attention=(ATTENTION, "ours"), space=(td.Sphere(), "ours"), projection=("orthogonal", "choice")
    ),
    "Flow.velocity": _call(FLOW.velocity, **_POINT),
    "Flow.step": _call(FLOW.step, x=(X, "array"), k=(0, "integer"), tau=(1.0, "number")),
    "Consensus": _call(td.events.Consensus, below=(0.1, "number"), reference=(0, "integer")),
    "NormAbove": _call(td.events.NormAbove, bound=(0.1, "number")),
    "AtRest": _call(td.events.AtRest, speed=(0.1, "number")),
    "simulate": _call(
        td.simulate,
        flow=(FLOW, "ours"),
        x0=(X, "array"),
        times=(TIMES, "array"),
        rtol=(1e-8, "number"),
        atol=(1e-8, "number"),
        engine=("auto", "choice"),
        events=((), "any"),
        max_steps=(1000, "integer"),
        device=("cpu", "any"),
        dtype=(torch.float64, "any"),
        progress=(False, "any"),
        method=("dopri5", "choice"),
        step=(None, "any"),
        frame=("tokens", "choice"),
    ),
    "simulate, fixed": _call(partial(td.simulate, FLOW, X, TIMES), step=(0.5, "number")),
    "simulate, noise": _call(partial(td.simulate, FLOW, X, TIMES, step=0.5), noise=(td.Noise(0.5, seed=0), "any")),
    "Noise": _call(td.Noise, strength=(0.5, "number"), seed=(0, "integer"), first=(0, "integer")),
    "simulate, layers": _call(partial(td.simulate, FLOW, X, [0, 2], engine="layers"), tau=(0.5, "number")),
    "check": _call(td.check, flow=(FLOW, "ours"), x0=(X, "array")),
    "certify": _call(td.certify, trajectory=(RUN, "ours"), statements=(["asymptotic-4.1"], "any")),
    "Trajectory.open": _call(td.Trajectory.open, path=(Path("nothing"), "any")),
    "Diagnosis.open": _call(td.Diagnosis.open, folder=(Path("nothing"), "any")),
    "Comparison.open": _call(td.Comparison.open, folder=(Path("nothing"), "any")),
}

_LAW: tuple[Any, Kind] = ([0.5, 0.5], "array")
_TASK: tuple[Any, Kind] = (TASK, "ours")
CIRCUITS: dict[str, Call] = {
    "PairTask": _call(PairTask, q_true=_QK, positions=(3, "integer"), law=(None, "array or none")),
    "PairTask.sample": _call(TASK.sample, count=(3, "integer"), seed=(0, "integer"), length=(2, "integer")),
    "PairTask.targets": _call(TASK.targets, x=([1, 2], "array")),
    "PairTask.embed": _call(TASK.embed, x=([1, 2], "array"), scratch=(1, "integer")),
    "category_law": _call(category_law, law=_LAW, categories=(2, "integer")),
    "pair_numbers": _call(functionals.pair_numbers, categories=(2, "integer"), base=(10.0, "number")),
    "random_functional": _call(functionals.random_functional, categories=(2, "integer"), seed=(0, "integer")),
    "either_pair": _call(logic.either_pair, x=([0.0, 1.0, 0.0, 1.0], "array")),
    "WORD_LOGIC": _call(logic.WORD_LOGIC, words=(["Socrates"], "any")),
    "solution_1": _call(constructions.solution_1, task=_TASK, form=("rows", "choice"), causal=(False, "flag")),
    **{
        name: _call(
            getattr(constructions, name),
            task=_TASK,
            form=("exact", "choice"),
            K=(100.0, "number"),
            causal=(False, "flag"),
        )
        for name in ("solution_2", "solution_3")
    },
    "softmax_solution_1": _call(
        constructions.softmax_solution_1, task=_TASK, sharpness=(40.0, "number"), causal=(False, "flag")
    ),
    "mixture": _call(constructions.mixture, task=_TASK, attention_share=(0.5, "number"), causal=(False, "flag")),
    "linear_case": _call(
        constructions.linear_case,
        categories=(2, "integer"),
        positions=(3, "integer"),
        base=(10.0, "number"),
        causal=(False, "flag"),
    ),
    "pair_order": _call(pair_order, categories=(2, "integer")),
    "shift": _call(shift, positions=(2, "integer")),
    "by_pair": _call(by_pair, q_true=(torch.tensor(QK), "array")),
    "check_equivalence": _call(
        constructions.check_equivalence, task=_TASK, x=([1, 2, 1], "array"), K=(100.0, "number")
    ),
    "compare": _call(constructions.compare, model=(MODEL, "ours"), sequences=([[1, 2]], "any"), seed=(0, "integer")),
    "transformer": _call(MODEL, x=([1, 2], "array")),
    "OneLayerTransformer": _call(
        circuits.OneLayerTransformer,
        attention=(MODEL.attention, "ours"),
        B=(MODEL.B, "array"),
        bias=(MODEL.bias, "array"),
        C=(MODEL.C, "array"),
        task=_TASK,
        offset=(0.0, "number"),
        skip=(1.0, "number"),
        norm=(None, "any"),
        activation=("relu", "choice"),
    ),
    "with_qk": _call(MODEL.with_qk, qk=(MODEL.qk, "array")),
    "LayerNorm": _call(
        circuits.LayerNorm, gain=(torch.ones(3), "array"), shift=(torch.ones(3), "array"), eps=(1e-5, "number")
    ),
    "evidence": _call(
        evidence.evidence,
        model=(MODEL, "ours"),
        task=_TASK,
        samples=(50, "integer"),
        seed=(0, "integer"),
        resamples=(20, "integer"),
        confidence=(0.9, "number"),
    ),
    "PositionsOnly": _call(landscape.PositionsOnly, law=_LAW, positions=(3, "integer")),
    "SoftmaxPositions": _call(landscape.SoftmaxPositions, law=_LAW, positions=(3, "integer")),
    "CategoriesOnly": _call(
        landscape.CategoriesOnly, q_true=_QK, law=_LAW, positions=(3, "integer"), causal=(False, "flag")
    ),
    "find_basins": _call(
        landscape.find_basins,
        landscape=(ON_POSITIONS, "ours"),
        starts=(1, "integer"),
        seed=(0, "integer"),
        method=("quasi-newton", "choice"),
        scale=(1.0, "number"),
        budget=(2, "integer"),
        horizon=(1.0, "number"),
        tolerance=(1e-3, "number"),
    ),
    "classify": _call(
        landscape.classify,
        landscape=(ON_POSITIONS, "ours"),
        attention=(np.zeros((3, 3)), "array"),
        v=(np.zeros((2, 2)), "array"),
        lowest=(0.0, "number"),
        expansions=(1, "integer"),
    ),
    "continue_descent": _call(
        continue_descent,
        landscape=(ON_POSITIONS, "ours"),
        attention=(np.zeros((3, 3)), "array"),
        v=(np.zeros((2, 2)), "array"),
        expansions=(1, "integer"),
        steps=(1, "integer"),
    ),
    "find_symmetries": _call(
        find_symmetries,
        landscape=(ON_POSITIONS, "ours"),
        attention=(np.zeros((3, 3)), "array"),
        v=(np.zeros((2, 2)), "array"),
    ),
    "stall": _call(
        stall,
        landscape=(landscape.SoftmaxPositions([0.5, 0.5], 3), "ours"),
        depth=(1.0, "number"),
    ),
    "survey": _call(
        landscape.survey,
        section=("3.1", "choice"),
        law=(None, "array or none"),
        categories=(2, "integer"),
        positions=(3, "integer"),
        starts=(1, "integer"),
        seed=(0, "integer"),
        method=("quasi-newton", "choice"),
        budget=(2, "integer"),
    ),
    "learn": _call(
        learning.learn,
        task=_TASK,
        architecture=("solution-2", "choice"),
        flavour=("free", "choice"),
        batch=(3, "integer"),
        steps=(1, "integer"),
        inner=(1, "integer"),
        hidden=(2, "integer"),
        seed=(0, "integer"),
        threads=(1, "integer"),
    ),
    "LearningRecord.open": _call(learning.LearningRecord.open, folder=(Path("nothing"), "any")),
    "design": _call(design, architecture=("solution-1", "choice")),
}

_STATES = RUN.tensor
_DRAWN: dict[str, tuple[Any, Kind]] = {"axes": (None, "any"), "width": (3.3, "number")}
_OVER_TIME: dict[str, tuple[Any, Kind]] = {"times": (TIMES, "array"), "log": ("none", "choice"), **_DRAWN}
_OF_RUN: dict[str, tuple[Any, Kind]] = {"states": (_STATES, "array"), "system": (None, "any")}
PLOTS: dict[str, Call] = {
    "tokens": _call(figures.tokens, **_OF_RUN, space=(None, "any"), view=(None, "any"), **_DRAWN),
    "tokens on a sphere": _call(figures.tokens, states=(RUN, "any"), space=(td.Sphere(), "any")),
    "phase_plane": _call(
        figures.phase_plane,
        **_OF_RUN,
        components=((0, 1), "any"),
        flow=(FLOW, "any"),
        probe=(0, "any"),
        frame=(0, "integer"),
        times=(TIMES, "array or none"),
        **_DRAWN,
    ),
    "over_time": _call(
        figures.over_time,
        values=(np.ones((2, 3)), "array"),
        label=("V", "text"),
        names=(("one", "two"), "any"),
        many=("systems", "text"),
        references=({"bound": 1.0}, "any"),
        time_label=("t", "text"),
        **_OVER_TIME,
    ),
    "distances": _call(figures.distances, **_OF_RUN, geometry=("euclidean", "choice"), **_OVER_TIME),
    "norms": _call(figures.norms, **_OF_RUN, **_OVER_TIME),
    "heat_map": _call(
        figures.heat_map,
        matrix=_QK,
        blocks=({"a": 2}, "any"),
        column_blocks=({"a": 1, "b": 1}, "any"),
        cells=("plain", "choice"),
        scale=(1.0, "any"),
        label=("q", "text"),
        row_label=("i", "text"),
        column_label=("k", "text"),
        **_DRAWN,
    ),
    "phase_diagram": _call(
        figures.phase_diagram,
        shares=(fractions(SWEPT), "ours"),
        x=("scale", "any"),
        y=("tokens", "any"),
        words=(("zero",), "any"),
        where=({"tokens": 2}, "any"),
        width=(3.3, "any"),
    ),
    "panels": _call(
        figures.panels,
        columns=(1, "integer"),
        rows=(1, "integer"),
        width=(3.3, "number"),
        height=(2.0, "any"),
        titles=(("one",), "any"),
    ),
    "save": _call(
        figures.save,
        figure=(figures.panels()[0], "ours"),
        path=("drawn.png", "any"),
        dots_per_inch=(20, "number"),
    ),
    "animate": _call(
        figures.animate,
        **_OF_RUN,
        path=("drawn.gif", "any"),
        frames_per_second=(5, "number"),
        seconds=(0.4, "any"),
        times=(TIMES, "array or none"),
        space=(None, "any"),
        view=(None, "any"),
        width=(1.0, "number"),
        dots_per_inch=(20, "number"),
    ),
}

_FEW_POINTS = example_text("random", "sweep").replace("points = 1000", "points = 3")

_TIMES: tuple[Any, Kind] = (TIMES, "array")
_WEIGHTS: tuple[Any, Kind] = ("softmax", "choice")

THEOREMS: dict[str, Call] = {
    "predict_equiangular": _call(
        theorems.predict_equiangular,
        times=_TIMES,
        tokens=(3, "integer"),
        beta=(1.0, "number"),
        cosine=(0.0, "number"),
        speed=(1.0, "number"),
        weights=_WEIGHTS,
    ),
    "predict_two_clusters": _call(
        theorems.predict_two_clusters,
        times=_TIMES,
        beta=(1.0, "number"),
        share=(0.5, "number"),
        cosine=(0.0, "number"),
        speed=(1.0, "number"),
        weights=_WEIGHTS,
    ),
    "predict_gaussian_moments": _call(
        theorems.predict_gaussian_moments,
        times=_TIMES,
        mean=([0.1, 0.2], "array"),
        covariance=(np.eye(2), "array"),
        qk=_QK,
        ov=(-2 * np.eye(2), "array"),
    ),
    "predict_interaction_window": _call(theorems.predict_interaction_window, beta=([1.0, 2.0], "array")),
    "predict_long_context": _call(
        theorems.predict_long_context, tokens=(10.0, "number"), scale=(1.0, "number"), cosine=(0.5, "number")
    ),
    "predict_noise_transition": _call(theorems.predict_noise_transition, beta=(1.0, "number"), dim=(3, "integer")),
    "predict_position_correlation": _call(
        theorems.predict_position_correlation,
        times=_TIMES,
        source=(0.5, "array"),
        position=(1.0, "array"),
        beta=(1.0, "number"),
        mode=(1, "integer"),
        decay=(0.0, "number"),
    ),
    "predict_strong_centers": _call(
        theorems.predict_strong_centers, tokens=(3, "any"), dim=(2, "integer"), radius=([0.5], "array")
    ),
    "search_counterexample": _call(
        theorems.search_counterexample,
        statement=("masking-table-1-simple", "any"),
        systems=([theorems.Family(2, 2)], "any"),
        seed=(0, "integer"),
        rounds=(1, "integer"),
        count=(2, "integer"),
        times=(TIMES, "array or none"),
        store=(None, "any"),
        resume=(False, "flag"),
        progress=(False, "any"),
    ),
    "Family": _call(
        theorems.Family,
        tokens=(2, "integer"),
        dim=(2, "integer"),
        **dict.fromkeys(("qk", "ov", "start"), ("any", "any")),
        space=("sphere", "choice"),
        mask=("full", "choice"),
        weights=_WEIGHTS,
    ),
    "Constant": _call(attention.Constant, matrix=(torch.eye(2), "any")),
    "FactoredMatrix": _call(attention.FactoredMatrix, left=(torch.eye(2), "any"), right=(torch.eye(2), "any")),
    "rotate": _call(
        attention.rotate,
        vectors=(torch.ones(3, 4), "any"),
        frequencies=(torch.ones(2), "any"),
        position=(1.0, "number"),
    ),
    "softmax_solution_2": _call(
        constructions.softmax_solution_2,
        task=(PairTask([[1.0, 2.0], [2.0, 1.0]], positions=3), "ours"),
        causal=(False, "flag"),
    ),
    "softmax_solution_3": _call(
        constructions.softmax_solution_3,
        task=(TASK, "ours"),
        sharpness=(40.0, "number"),
        K=(None, "any"),
        causal=(False, "flag"),
    ),
    "equal_column_means": _call(functionals.equal_column_means, q_true=(np.ones((2, 2)), "array"), law=(None, "any")),
    "positive_functional": _call(
        functionals.positive_functional,
        categories=(2, "integer"),
        seed=(0, "integer"),
        law=(None, "any"),
        spread=(0.25, "number"),
    ),
    "Multipliers": _call(Multipliers, **dict.fromkeys(("lower", "skew", "pivots", "remedy"), (1.0, "number"))),
}
"""Closed forms, the search for counterexamples, and small classes."""

SWEEPS: dict[str, Call] = {
    "fractions": _call(
        fractions,
        dataset=(SWEPT, "ours"),
        variable=("outcome", "choice"),
        over=(("draw",), "any"),
        by=((), "any"),
        cells=(12, "integer"),
    ),
    "report": _call(
        report,
        dataset=(SWEPT, "ours"),
        path=("sweep.html", "any"),
        title=("a sweep", "text"),
        files=((), "any"),
        manifest=(None, "any"),
        max_bytes=(None, "any"),
    ),
    "open_store": _call(open_store, store=("none.zarr", "any"), partial=(False, "any")),
    # Nothing answers at that address: what is right ends there, before anything is run.
    "sweep": _call(
        partial(sweep, parse_plan(_FEW_POINTS, "random.toml"), scheduler="nonsense://127.0.0.1:1"),
        store=("swept.zarr", "any"),
        workers=(1, "any"),
        resume=(False, "flag"),
        command=(None, "any"),
    ),
}

_SIZES: dict[str, tuple[Any, Kind]] = {"dim": (4, "integer"), "heads": (2, "integer")}
_PLACE: dict[str, tuple[Any, Kind]] = {"device": ("cpu", "any"), "dtype": (torch.float64, "any")}
_DRAWS: dict[str, tuple[Any, Kind]] = {"generator": (None, "any")}
_START: dict[str, tuple[Any, Kind]] = {
    "size": (1.0, "number"),
    "noise": (0.1, "number"),
    "skew": (0.1, "number"),
    **_DRAWS,
}
_POSITIVE = torch.tensor([[2.0, 0.5], [0.1, 1.0]])
MODULES: dict[str, Call] = {
    "Regime": _call(modules.Regime, w=("positive", "choice"), a=("half", "choice"), spectrum=(None, "any")),
    "ConstrainedAttention": _call(
        modules.ConstrainedAttention,
        **_SIZES,
        regime=("divergence", "choice"),
        form=("congruence", "choice"),
        symmetric=(False, "flag"),
        causal=(True, "flag"),
        scope=("sum", "choice"),
        output=("identity", "choice"),
        bias=(False, "flag"),
        skew=(0.1, "number"),
        value_start=("identity", "choice"),
        terms=([], "any"),
        dropout=(0.1, "number"),
        **_DRAWS,
        **_PLACE,
    ),
    "converted": _call(modules.ConstrainedAttention(4, 2, "divergence").converted, form=("solve", "choice")),
    "SignedMatrix": _call(
        modules.SignedMatrix,
        dim=(4, "integer"),
        sign=("half", "choice"),
        symmetric=(False, "flag"),
        blocks=(2, "integer"),
        **_PLACE,
    ),
    "SignedMatrix.start": _call(modules.SignedMatrix(2).start, **_START),
    "SignedMatrix.take": _call(modules.SignedMatrix(2).take, matrix=(_POSITIVE, "array")),
    "PlacedSpectrum": _call(modules.PlacedSpectrum, dim=(2, "integer"), sign=("negative", "choice"), **_PLACE),
    "PlacedSpectrum.start": _call(modules.PlacedSpectrum(2, "negative").start, noise=(0.1, "number"), **_DRAWS),
    "LearnedPositions": _call(
        modules.LearnedPositions, tokens=(3, "integer"), dim=(2, "integer"), std=(0.1, "number"), **_DRAWS
    ),
    "SinusoidalPositions": _call(modules.SinusoidalPositions, base=(100.0, "number")),
    "Rotary": _call(modules.Rotary, width=(2, "integer"), base=(100.0, "number")),
    "DecoupledRotary": _call(modules.DecoupledRotary, **_SIZES, width=(2, "integer"), base=(100.0, "number"), **_DRAWS),
    "NegativeDiagonal": _call(modules.NegativeDiagonal, **_SIZES, kind=("diagonal", "choice"), start=(-0.1, "number")),
    "LanguageModelConfig": _call(
        LanguageModelConfig,
        vocab_size=(9, "integer"),
        hidden_size=(4, "integer"),
        num_hidden_layers=(1, "integer"),
        num_attention_heads=(2, "integer"),
        intermediate_size=(4, "integer"),
        max_position_embeddings=(5, "integer"),
        positions=("rotary", "choice"),
        rotary_width=(2, "integer"),
        remedy=("identity", "choice"),
        norms=("pre", "choice"),
        regime=("divergence", "choice"),
        form=("congruence", "choice"),
        symmetric=(False, "flag"),
        scope=("sum", "choice"),
        output=("free", "choice"),
        skew=(0.1, "number"),
        value_start=("like_w", "choice"),
        dropout=(0.1, "number"),
        cutoffs=([2, 5], "any"),
        tie_word_embeddings=(False, "flag"),
    ),
    "VisionConfig": _call(
        VisionConfig,
        image_size=(8, "integer"),
        channels=(3, "integer"),
        patch_size=(2, "integer"),
        hidden_size=(4, "integer"),
        num_hidden_layers=(1, "integer"),
        num_attention_heads=(2, "integer"),
        intermediate_size=(4, "integer"),
        num_labels=(10, "integer"),
        norms=("pre", "choice"),
        layer_norm_eps=(1e-6, "number"),
        regime=("divergence", "choice"),
        form=("congruence", "choice"),
        symmetric=(False, "flag"),
        scope=("sum", "choice"),
        output=("free", "choice"),
        skew=(0.1, "number"),
        value_start=("like_w", "choice"),
        bias=(True, "flag"),
        drop_path=(0.1, "number"),
        id2label=(None, "any"),
    ),
    "word_tokenizer": _call(word_tokenizer, vocabulary=({"<eos>": 0, "<unk>": 1}, "any")),
    "vocabulary_of": _call(vocabulary_of, counts=({"a": 2}, "any")),
}
