"""Runge–Kutta methods as data, a new method is a new table; one attempted step and its dense output."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from tokendynamics.dynamics._field import Field

Row = tuple[Fraction, ...]


@dataclass(frozen=True)
class Tableau:
    """An explicit method with an embedded error estimate and a continuous extension.

    Attributes:
        name: As in `simulate(method=…)`.
        order: Of the solution that is propagated.
        nodes: c.
        stages: Rows of a, the first (empty) for the first stage. Of a pair the last row is the solution itself.
        weights: b.
        error: b − b̂ over all stages; empty for methods of fixed step only. Of a pair the last stage of a step is the
            first of the next one.
        bend: What the continuous extension adds to the cubic through both ends, over all stages and the extra ones:
            coefficients of ``θ²(1−θ)²``, ``θ³(1−θ)²``, ``θ³(1−θ)³``, …
        coarse: A second difference of weights, of lower order; with it the error is ``e² / √(e² + c² / 100)``, which
            an e that is small by chance does not make small.
        extra_nodes: c of the stages that only the continuous extension needs.
        extra_stages: Their rows of a, over all stages before.
        reach: Times the step and the largest stage slope, how far a state can be within a step from where it is at
            either end: the largest sum of sizes of the extension's weights. Infinite where the extension needs stages
            that a step does not have.
    """

    name: str
    order: int
    nodes: Row
    stages: tuple[Row, ...]
    weights: Row
    error: Row
    bend: tuple[Row, ...]
    coarse: Row = ()
    extra_nodes: Row = ()
    extra_stages: tuple[Row, ...] = ()
    reach: float = math.inf

    @property
    def extension(self) -> tuple[Row, ...]:
        """The continuous extension: for each stage, extra ones included, its coefficients e_0, e_1, ….

        ``y(θ) = y_0 + h Σ_s k_s θ (e_0 + (1−θ) (e_1 + θ (e_2 + (1−θ) (e_3 + …))))``.

        The first three are the cubic through states and slopes at both ends. In this form nothing cancels near an end,
        and at θ = 1 it is the solution itself.
        """
        count, zero = len(self.stages), Fraction(0)
        rows: list[Row] = []
        for stage in range(count + len(self.extra_stages)):
            weight = self.weights[stage] if stage < count else zero
            first, last = Fraction(stage == 0), Fraction(stage == count - 1)
            cubic = (weight, first - weight, 2 * weight - first - last)
            rows.append(cubic + tuple(row[stage] for row in self.bend))
        return tuple(rows)


def _row(*numbers: str) -> Row:
    """Return a row from numbers, one or several in each string."""
    return tuple(Fraction(number) for number in " ".join(numbers).split())


def _minus(one: Row, other: Row) -> Row:
    return tuple(left - right for left, right in zip(one, other, strict=True))


DOPRI5 = Tableau(
    # Dormand and Prince (1980), the method of MATLAB's ode45; the extension of order 4 is Shampine's (1986).
    name="dopri5",
    order=5,
    nodes=_row("0", "1/5", "3/10", "4/5", "8/9", "1", "1"),
    stages=(
        (),
        _row("1/5"),
        _row("3/40", "9/40"),
        _row("44/45", "-56/15", "32/9"),
        _row("19372/6561", "-25360/2187", "64448/6561", "-212/729"),
        _row("9017/3168", "-355/33", "46732/5247", "49/176", "-5103/18656"),
        _row("35/384", "0", "500/1113", "125/192", "-2187/6784", "11/84"),
    ),
    weights=_row("35/384", "0", "500/1113", "125/192", "-2187/6784", "11/84", "0"),
    error=_row("71/57600", "0", "-71/16695", "71/1920", "-17253/339200", "22/525", "-1/40"),
    bend=(
        _row(
            "-12715105075/11282082432",
            "0",
            "87487479700/32700410799",
            "-10690763975/1880347072",
            "701980252875/199316789632",
            "-1453857185/822651844",
            "69997945/29380423",
        ),
    ),
    reach=1.67,
)

BOSH3 = Tableau(
    # Bogacki and Shampine (1989): for fields with kinks, where high order buys nothing.
    name="bosh3",
    order=3,
    nodes=_row("0", "1/2", "3/4", "1"),
    stages=((), _row("1/2"), _row("0", "3/4"), _row("2/9", "1/3", "4/9")),
    weights=_row("2/9", "1/3", "4/9", "0"),
    error=_row("-5/72", "1/12", "1/9", "-1/8"),
    bend=(),
    reach=1.07,
)

_WEIGHTS_8 = _row(
    "0.0542937341165687622380535766363 0 0 0 0 4.45031289275240888144113950566",
    "1.89151789931450038304281599044 -5.8012039600105847814672114227 0.31116436695781989440891606237",
    "-0.152160949662516078556178806805 0.201365400804030348374776537501 0.0447106157277725905176885569043",
    "0",
)

DOP853 = Tableau(
    # Hairer, Nørsett and Wanner, Solving Ordinary Differential Equations I (1993), II.5, II.6 and II.10: the pair is by
    # Dormand and Prince, the extension takes three more stages. Published to thirty digits.
    name="dop853",
    order=8,
    nodes=_row(
        "0",
        "0.0526001519587677318785587544488",
        "0.0789002279381515978178381316732",
        "0.11835034190722739672675719751",
        "0.28164965809277260327324280249",
        "1/3",
        "1/4",
        "4/13",
        "127/195",
        "3/5",
        "6/7",
        "1",
        "1",
    ),
    stages=(
        (),
        _row("0.0526001519587677318785587544488"),
        _row("0.0197250569845378994544595329183 0.0591751709536136983633785987549"),
        _row("0.0295875854768068491816892993775 0 0.0887627564304205475450678981324"),
        _row(
            "0.241365134159266685502369798665 0 -0.884549479328286085344864962717", "0.924834003261792003115737966543"
        ),
        _row(
            "0.037037037037037037037037037037 0 0 0.170828608729473871279604482173", "0.125467687566822425016691814123"
        ),
        _row("0.037109375 0 0 0.170252211019544039314978060272 0.0602165389804559606850219397283 -0.017578125"),
        _row(
            "0.0370920001185047927108779319836 0 0 0.170383925712239993810214054705",
            "0.107262030446373284651809199168 -0.0153194377486244017527936158236",
            "0.00827378916381402288758473766002",
        ),
        _row(
            "0.624110958716075717114429577812 0 0 -3.36089262944694129406857109825",
            "-0.868219346841726006818189891453 27.5920996994467083049415600797 20.1540675504778934086186788979",
            "-43.4898841810699588477366255144",
        ),
        _row(
            "0.477662536438264365890433908527 0 0 -2.48811461997166764192642586468",
            "-0.590290826836842996371446475743 21.2300514481811942347288949897 15.2792336328824235832596922938",
            "-33.2882109689848629194453265587 -0.0203312017085086261358222928593",
        ),
        _row(
            "-0.93714243008598732571704021658 0 0 5.18637242884406370830023853209 1.09143734899672957818500254654",
            "-8.14978701074692612513997267357 -18.5200656599969598641566180701 22.7394870993505042818970056734",
            "2.49360555267965238987089396762 -3.0467644718982195003823669022",
        ),
        _row(
            "2.27331014751653820792359768449 0 0 -10.5344954667372501984066689879",
            "-2.00087205822486249909675718444 -17.9589318631187989172765950534 27.9488845294199600508499808837",
            "-2.85899827713502369474065508674 -8.87285693353062954433549289258 12.3605671757943030647266201528",
            "0.643392746015763530355970484046",
        ),
        _WEIGHTS_8[:12],
    ),
    weights=_WEIGHTS_8,
    error=_row(
        "0.01312004499419488073250102996 0 0 0 0 -1.225156446376204440720569753",
        "-0.4957589496572501915214079952 1.664377182454986536961530415 -0.350328848749973681688648729",
        "0.3341791187130174790297318841 0.08192320648511571246570742613 -0.02235530786388629525884427845 0",
    ),
    coarse=_minus(_WEIGHTS_8, _row("31/127 0 0 0 0 0 0 0 0.733846688281611857341361741547 0 0 3/136 0")),
    bend=(
        _row(
            "-8.4289382761090128651353491142 0 0 0 0 0.5667149535193777696253178359",
            "-3.0689499459498916912797304727 2.384667656512069828772814968 2.1170345824450282767155149946",
            "-0.8713915837779729920678990749 2.240437430260788275854177165 0.6315787787694688181557024929",
            "-0.0889903364513333108206981174 18.148505520854727256656404962 -9.1946323924783554000451984436",
            "-4.4360363875948939664310572",
        ),
        _row(
            "10.427508642579134603413151009 0 0 0 0 242.28349177525818288430175319 165.20045171727028198505394887",
            "-374.54675472269020279518312152 -22.113666853125306036270938578 7.7334326684722638389603898808",
            "-30.674084731089398182061213626 -9.3321305264302278729567221706 15.697238121770843886131091075",
            "-31.139403219565177677282850411 -9.3529243588444783865713862664 35.81684148639408375246589854",
        ),
        _row(
            "19.985053242002433820987653617 0 0 0 0 -387.03730874935176555105901742",
            "-189.17813819516756882830838328 527.80815920542364900561016686 -11.573902539959630126141871134",
            "6.8812326946963000169666922661 -1.000605096691083840318386098 0.7777137798053443209286926574",
            "-2.7782057523535084065932004339 -60.196695231264120758267380846 84.320405506677161018159903784",
            "11.99229113618278932803513003",
        ),
        _row(
            "-25.693933462703749003312586129 0 0 0 0 -154.18974869023643374053993627",
            "-231.52937917604549567536039109 357.6391179106141237828534991 93.405324183624310003907691704",
            "-37.458323136451633156875139351 104.09964950896230045147246184 29.840293426660503123344363579",
            "-43.533456590011143754432175058 96.3245539591882829483949506 -39.177261675615439165231486172",
            "-149.72683625798562581422125276",
        ),
    ),
    extra_nodes=_row("1/10", "1/5", "7/9"),
    extra_stages=(
        _row(
            "0.0561675022830479523392909219681 0 0 0 0 0 0.253500210216624811088794765333",
            "-0.246239037470802489917441475441 -0.124191423263816360469010140626 0.15329179827876569731206322685",
            "0.00820105229563468988491666602057 0.00756789766054569976138603589584 -0.008298",
        ),
        _row(
            "0.0318346481635021405060768473261 0 0 0 0 0.0283009096723667755288322961402",
            "0.0535419883074385676223797384372 -0.0549237485713909884646569340306 0 0",
            "-0.000108347328697249322858509316994 0.000382571090835658412954920192323",
            "-0.000340465008687404560802977114492 0.141312443674632500278074618366",
        ),
        _row(
            "-0.428896301583791923408573538692 0 0 0 0 -4.69762141536116384314449447206",
            "7.68342119606259904184240953878 4.06898981839711007970213554331 0.356727187455281109270669543021 0 0",
            "0 -0.00139902416515901462129418009734 2.9475147891527723389556272149",
            "-9.15095847217987001081870187138",
        ),
    ),
)

RK4 = Tableau(
    # The classical method of fourth order, fixed steps only.
    name="rk4",
    order=4,
    nodes=_row("0", "1/2", "1/2", "1"),
    stages=((), _row("1/2"), _row("0", "1/2"), _row("0", "0", "1")),
    weights=_row("1/6", "1/3", "1/3", "1/6"),
    error=(),
    bend=(),
)

EULER = Tableau(
    # Explicit Euler, fixed steps only: the loop of the theorists' scripts, to compare with.
    name="euler",
    order=1,
    nodes=_row("0"),
    stages=((),),
    weights=_row("1"),
    error=(),
    bend=(),
)

HEUN = Tableau(
    # Heun's method, fixed steps only: that of runs with noise, whose order in law is no higher.
    name="heun",
    order=2,
    nodes=_row("0", "1"),
    stages=((), _row("1")),
    weights=_row("1/2", "1/2"),
    error=(),
    bend=(),
)

TABLEAUS = {tableau.name: tableau for tableau in (DOPRI5, BOSH3, DOP853, RK4, HEUN, EULER)}


@dataclass(frozen=True)
class Coefficients:
    """A tableau as tensors of the states' dtype and device.

    Attributes:
        stages: Rows of a.
        nodes: c.
        weights: b.
        errors: `Tableau.error` and, where there is one, `Tableau.coarse`: (1 or 2, stage).
        extension: `Tableau.extension`, (stage, coefficient), over all stages and the extra ones.
        extra_stages: Rows of a of the stages that only the extension needs.
        extra_nodes: Their c.
    """

    stages: tuple[Tensor, ...]
    nodes: tuple[float, ...]
    weights: Tensor
    errors: Tensor
    extension: Tensor
    extra_stages: tuple[Tensor, ...]
    extra_nodes: tuple[float, ...]

    @classmethod
    def of(cls, tableau: Tableau, states: Tensor) -> Coefficients:
        """Convert the exact fractions of a tableau."""

        def tensor(row: Row) -> Tensor:
            return torch.tensor([float(number) for number in row], dtype=states.dtype, device=states.device)

        return cls(
            stages=tuple(tensor(row) for row in tableau.stages),
            nodes=tuple(float(node) for node in tableau.nodes),
            weights=tensor(tableau.weights),
            errors=torch.stack([tensor(row) for row in (tableau.error, tableau.coarse) if row or row is tableau.error]),
            extension=torch.stack([tensor(row) for row in tableau.extension]),
            extra_stages=tuple(tensor(row) for row in tableau.extra_stages),
            extra_nodes=tuple(float(node) for node in tableau.extra_nodes),
        )

    @property
    def new_stages(self) -> int:
        """Right-hand sides of one attempted step, the first stage being known."""
        return len(self.stages) - 1


@dataclass(frozen=True)
class Attempt:
    """An attempted step: the new states before any retraction, the error estimates, and all slopes.

    Attributes:
        method: Of the step.
        start: States before the step, (system, token, dim).
        y: States after it.
        errors: Estimates of the local error, (1 or 2, system, token, dim).
        slopes: (stage, system, token, dim); those of extra stages are 0 until `extend` knows them.
        t: Times (system,), float64.
        h: Step sizes (system,).
        until: Times after the step.
    """

    method: Coefficients
    start: Tensor
    y: Tensor
    errors: Tensor
    slopes: Tensor
    t: Tensor
    h: Tensor
    until: Tensor

    def rows(self, index: Tensor) -> Attempt:
        """Return the attempt of some systems, in increasing order."""
        return self if len(index) == len(self.y) else self.taken(index)

    def taken(self, index: Tensor) -> Attempt:
        """Return the attempt of systems in any order, also several times."""
        start, y, t, h, until = (part[index] for part in (self.start, self.y, self.t, self.h, self.until))
        return Attempt(self.method, start, y, self.errors[:, index], self.slopes[:, index], t, h, until)

    def extend(self, field: Field, index: Tensor) -> None:
        """Evaluate the extra stages of the continuous extension for some systems, which `at` needs inside the step.

        Args:
            field: The vector field of all systems of the attempt.
            index: Which of them, in increasing order.
        """
        part, selected = self.rows(index), field.select(index)
        count = len(self.method.stages)
        for number, (row, node) in enumerate(zip(self.method.extra_stages, self.method.extra_nodes, strict=True)):
            state = _moved(part.start, row, part.slopes[: count + number], part.h)
            slope = selected.velocity(state, _time(field, node, part.t, part.h, part.until))
            part.slopes[count + number] = slope
            self.slopes[count + number, index] = slope

    def at(self, share: Tensor) -> Tensor:
        """Return states at the shares θ in [0, 1] of the step, one for each system, by the continuous extension."""
        factor, factors = share, [share]
        for number in range(1, self.method.extension.shape[1]):
            factor = factor * (1 - share if number % 2 else share)
            factors.append(factor)
        parts = (self.h * torch.stack(factors)).to(self.y.dtype).mT @ self.method.extension.mT
        return self.start + torch.einsum("ns,sntd->ntd", parts, self.slopes)

    @property
    def stages(self) -> Tensor:
        """The slopes of the step itself, (stage, system, token, dim)."""
        return self.slopes[: len(self.method.stages)]

    @property
    def last_slope(self) -> Tensor:
        """The slope at the end of the step, which is the last stage."""
        return self.stages[-1]


def take_step(
    field: Field, method: Coefficients, y: Tensor, t: Tensor, h: Tensor, slope: Tensor, until: Tensor
) -> Attempt:
    """Attempt a step of a first-same-as-last pair from the known first slope.

    Args:
        field: The vector field.
        method: Of an embedded pair.
        y: States (system, token, dim).
        t: Times (system,), float64.
        h: Step sizes (system,), float64.
        slope: The field at (y, t).
        until: Times after the step (system,): t + h but for rounding, and never passed.
    """
    count = len(method.stages)
    slopes = torch.empty(len(method.extension), *y.shape, dtype=y.dtype, device=y.device)
    slopes[0], slopes[count:] = slope, 0.0
    state = y
    for number in range(1, count):
        state = _moved(y, method.stages[number], slopes[:number], h)
        slopes[number] = field.velocity(state, _time(field, method.nodes[number], t, h, until))
    errors = (method.errors @ slopes[:count].flatten(start_dim=1)).view(-1, *y.shape) * _wide(h, y)
    return Attempt(method, y, state, errors, slopes, t, h, until)


def _moved(y: Tensor, row: Tensor, slopes: Tensor, h: Tensor) -> Tensor:
    """Return ``y + h Σ_s row_s k_s``."""
    return torch.addcmul(y, (row @ slopes.flatten(start_dim=1)).view_as(y), _wide(h, y))


def _wide(h: Tensor, y: Tensor) -> Tensor:
    return h.to(y.dtype)[:, None, None]


def _time(field: Field, node: float, t: Tensor, h: Tensor, until: Tensor) -> Tensor | float:
    return 0.0 if field.constant else torch.minimum(t + node * h, until)
