"""`heedful.ablate`: by how much a metric changes when heads or edges are taken away."""

from __future__ import annotations

import functools
import inspect
import math
import random
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError, HeedfulError, RunError
from heedful.interventions import change, metrics
from heedful.interventions.base import Change
from heedful.interventions.first_order import estimates, observed
from heedful.interventions.head_call import HeadCall
from heedful.interventions.intervene import intervene
from heedful.interventions.skipping import Blocks
from heedful.ops.indexing import evenly_spaced
from heedful.recorder import record
from heedful.recording import Recording

KINDS = ("zero", "mean", "resample")
METRICS: dict[str, Callable[..., Any]] = {"loss": metrics.loss, "kl": metrics.kl}
ESTIMATES = ("first_order", "query", "key")
Effect: TypeAlias = tuple[int, str, float, str]  # context, item, change of the metric, proof
SAMPLED = 24  # heads that are taken away although all effects are estimated
POSITIONS = r"(\*|-?\d+|\d+-\d+)"
PART = re.compile(rf"(\*|\d+)\.(\*|\d+)(?:@{POSITIONS}:{POSITIONS})?")


class Context(NamedTuple):
    """A forward pass: the model's arguments by name, and the number of its text.

    other: the arguments of another run, for "resample". metric: instead of the common metric.
    weight: of this pass in means over passes.
    """

    inputs: Mapping[str, Any]
    text: int = 0
    other: Mapping[str, Any] | None = None
    metric: Any = None
    weight: float = 1.0


def ablate(
    model: nn.Module, contexts: Sequence[Context | Mapping[str, Any]], *,
    metric: str | Callable[..., Any] = "loss", kind: str = "zero",
    groups: Mapping[str, Sequence[str]] | None = None, first_order: bool = False, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Take each head away, and measure by how much a metric changes; positive is worse.

    Sources: Michel et al. 2019 (arXiv:1905.10650); first order: Syed et al. 2023
    (arXiv:2310.10348), with the query and key of Kramár et al. 2024 (arXiv:2403.00745).

    Args:
        model: as for `heedful.intervene`, in evaluation mode.
        contexts: the model's arguments by name, for each text; or a `Context` for each pass.
        metric: "loss" (cross-entropy of the next token), "kl" (divergence from the unchanged
            model), or a function of (output, inputs, unchanged_output): a number, larger is worse.
        kind: what a head gives instead: "zero", "mean" (its mean output over all contexts) or
            "resample" (its output in another context of as many tokens).
        groups: by name, what is taken away together: heads "5.1" or "2.*", and edges of a head,
            such as "5.1@-1:0-3" from the last query to the keys 0 to 3.
        first_order: estimate all effects by one backward pass; up to 24 are also exact.
        seed: of the contexts that "resample" draws.

    Returns:
        what `heedful ablate --json` prints: "plain", the metric with all heads; "heads", with
        "delta", its mean over contexts, and "error", its standard error over texts; "groups";
        "proofs", the numbers of changed outputs; "correlation", of ranks, with first order.

    Raises:
        ArgumentError: an unknown kind, metric or head; contexts or a model that do not suit these.
        RunError: a metric that is not finite.

    >>> from heedful.models import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocabulary=9, context_length=8, width=12, layers=2, heads=3)).eval()
    >>> result = ablate(model, [{"ids": torch.tensor([[1, 2, 3]])}], groups={"first": ["0.*"]})
    >>> len(result["heads"]), result["groups"][0]["name"], result["proofs"]
    (6, 'first', {'proved': 7})
    """
    passes = [c if isinstance(c, Context) else Context(c, i) for i, c in enumerate(contexts)]
    ablation = Ablation(model, passes, metric, kind, groups or {}, first_order, seed)
    return ablation.result(e for i in range(len(ablation.contexts)) for e in ablation.effects(i))


class Ablation:
    """The work of `ablate`, by contexts; with its arguments.

    heads: the module, layer and number of each head, by "module:number".
    """

    def __init__(
        self, model: nn.Module, contexts: Sequence[Context], metric: str | Callable[..., Any],
        kind: str, groups: Mapping[str, Sequence[str]], first_order: bool, seed: int,
    ) -> None:  # fmt: skip
        if kind not in KINDS or (isinstance(metric, str) and metric not in METRICS):
            expected = f"{', '.join(KINDS)}; {', '.join(METRICS)} or a function"
            raise ArgumentError(f"kind={kind!r}, metric={metric!r}", expected=expected)
        if model.training:
            raise ArgumentError("a model in training mode", remedy="call model.eval()")
        self.model, self.kind, self.first_order = model, kind, first_order
        common = METRICS[metric] if isinstance(metric, str) else metric
        self.contexts = [checked(context, common) for context in contexts]
        if kind == "resample":
            self.contexts = with_others(self.contexts, seed)
        if not self.contexts:
            needed = "two tokens or more"
            if kind == "resample":
                needed = "two contexts of equal length, as --context-length cuts them"
            raise ArgumentError("no context", expected=needed)
        recording = self._recorded(self.contexts[0].inputs)
        used: Any = self.contexts[0].metric
        is_ours = getattr(used, "func", used).__module__ == metrics.__name__
        if is_ours and not any(call.kind == "causal" for call in recording):
            raise metrics.no_logits(f"a {type(model).__name__}")
        if first_order and used is metrics.kl:
            raise ArgumentError("first order of kl", expected="a metric whose gradient is not 0")
        self.heads: dict[str, dict[str, Any]] = {
            f"{call.name}:{head}": {"module": call.name, "layer": call.layer, "head": head}
            for call in recording
            for head in call.heads
        }
        self.names = list(dict.fromkeys(call.name for call in recording))
        self.groups = {name: self._parts(name, texts) for name, texts in groups.items()}
        exact = evenly_spaced(len(self.heads), SAMPLED if first_order else len(self.heads))
        self.items = {[*self.heads][i]: [([*self.heads][i], None)] for i in exact} | {
            f"group {name}": parts for name, parts in self.groups.items()
        }
        self._blocks = Blocks(model, self.names)

    def _parts(self, name: str, texts: Sequence[str]) -> list[tuple[str, Any]]:
        """Return the heads of a group, each with None or the positions of its hidden edges."""
        parts: dict[tuple[str, Any], None] = {}
        for text in texts:
            match = PART.fullmatch(text.strip())
            layer, head, *edges = match.groups() if match else ("", "", None)
            chosen = {
                (item, tuple(edges) if edges[0] else None): None
                for item, place in self.heads.items()
                if layer in ("*", str(place["layer"])) and head in ("*", str(place["head"]))
            }
            if not chosen:
                labels = [f"{place['layer']}.{place['head']}" for place in self.heads.values()]
                raise ArgumentError(
                    f"{text!r} in the group {name!r}",
                    expected=f"heads from {labels[0]} to {labels[-1]}, such as 2.*, or edges such "
                    "as 0.1@-1:0-3",
                )
            parts |= chosen
        return [*parts]

    def effects(self, number: int, done: Collection[str] = ()) -> Iterator[Effect]:
        """Yield the effect of each item that is not `done`, in the context with this number."""
        context = self.contexts[number]
        with torch.no_grad(), self._blocks.recorded():
            unchanged = self._run(context.inputs)
        plain = measure(context, unchanged, unchanged)
        yield number, "plain", plain, ""
        if self.first_order:
            yield from self._estimates(number, unchanged)
        other = self._recorded(context.other) if self.kind == "resample" else None
        can_skip = self._can_skip(context, unchanged, plain)
        for item, parts in self.items.items():
            if item not in done:
                changes = self._changes(parts, other)
                value, proof = self._changed(context, unchanged, changes, can_skip)
                yield number, item, value - plain, proof

    def _run(self, inputs: Mapping[str, Any]) -> Any:
        has_cache = "use_cache" in inspect.signature(self.model.forward).parameters
        return self.model(**({"use_cache": False} if has_cache else {}) | {**inputs})

    @torch.no_grad()
    def _recorded(self, inputs: Any) -> Recording:
        with record(self.model, values=True) as recording:
            self._run(inputs)
        return recording

    @torch.no_grad()
    def _can_skip(self, context: Context, unchanged: Any, plain: float) -> bool:
        """Whether the metric stays equal if all blocks below the last attention are skipped."""
        try:
            with self._blocks.skipped(self.names[-1:]):
                again = self._run(context.inputs)
                return plain == measure(context, again, unchanged)
        except Exception:  # a block needs more of an earlier one than its output
            return False

    @torch.no_grad()
    def _changed(
        self, context: Context, unchanged: Any, changes: dict[str, list[Change]], can_skip: bool
    ) -> tuple[float, str]:
        """Return the metric of a pass with changes of modules, and the worst proof."""
        named = {name or type(self.model).__name__: items for name, items in changes.items()}
        with self._blocks.skipped(changes if can_skip else ()), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # refuted changes are counted
            with intervene(self.model, named) as changed:
                output = self._run(context.inputs)
        proofs = {line.proof for line in changed.report()}
        worst = next(word for word in ("refuted", "unproved", "proved") if word in proofs)
        return measure(context, output, unchanged), worst

    def _changes(self, parts: list[tuple[str, Any]], other: Any) -> dict[str, list[Change]]:
        """Return the changes of each module that take away these heads and edges."""
        heads: dict[Any, list[int]] = defaultdict(list)
        changes: dict[str, list[Change]] = defaultdict(list)
        for item, edges in parts:
            heads[self.heads[item]["module"], edges].append(self.heads[item]["head"])
        for (name, edges), numbers in heads.items():
            if edges:
                queries, keys = map(_positions, edges)
                new = change.block(queries, keys, numbers)
            elif self.kind == "mean":
                new = change.mean(numbers, of=self._means[name][numbers])
            elif self.kind == "resample":
                new = change.output_from(other, numbers)
            else:
                new = change.zero(numbers)
            changes[name].append(new)
        return changes

    @functools.cached_property
    def _means(self) -> dict[str, Tensor]:
        """The mean output of the heads of each module over all contexts, (H, v)."""
        sums, counts = dict[str, Any](), Counter[str]()
        for context in self.contexts:
            for call in self._calls(context.inputs):
                sums[call.name] = sums.get(call.name, 0) + call.before.double().sum((0, 2))
                counts[call.name] += len(call.before) * call.shape[2]
        return {name: total / counts[name] for name, total in sums.items()}

    @torch.no_grad()
    def _calls(self, inputs: Any) -> list[HeadCall]:
        return observed(self.model, self.names, lambda: self._run(inputs), [])[1]

    def _estimates(self, number: int, unchanged: Any) -> Iterator[Effect]:
        """Yield first-order estimates of the effects of all heads in a context."""
        context, probes, totals = self.contexts[number], list[Tensor](), Counter[str]()
        with torch.enable_grad():
            run = functools.partial(self._run, context.inputs)
            output, calls = observed(self.model, self.names, run, probes)
            metric = context.metric(output, context.inputs, unchanged)
        gradients = torch.autograd.grad(metric, probes, allow_unused=True, materialize_grads=True)
        if self.kind == "resample":
            others: Sequence[Any] = self._calls(context.other)
        elif self.kind == "mean":
            others = [self._means[call.name][:, None].to(call.before) for call in calls]
        else:
            others = [torch.zeros_like(call.before) for call in calls]
        for call, gradient, other in zip(calls, gradients, others, strict=True):
            for name, numbers in estimates(call, gradient, other).items():
                for head, estimate in zip(call.heads, numbers.tolist(), strict=True):
                    totals[f"{name} {call.name}:{head}"] += estimate
        yield from ((number, item, total, "") for item, total in totals.items())

    def result(self, effects: Iterable[Effect]) -> dict[str, Any]:
        """Return the means over contexts with their errors, as `ablate` does."""
        values: dict[str, dict[int, float]] = defaultdict(dict)
        proofs = {}
        for context, item, delta, proof in effects:
            values[item][context], proofs[item, context] = delta, proof
        results = {item: self._mean(deltas) for item, deltas in values.items()}

        def measured(item: str) -> dict[str, Any]:
            return results.get(item, {"delta": None, "error": None})

        heads: list[dict[str, Any]] = [
            place | measured(item) | {n: measured(f"{n} {item}")["delta"] for n in ESTIMATES}
            for item, place in self.heads.items()
        ]
        groups = []
        for name, parts in self.groups.items():
            deltas: Any = [None if edges else measured(item)["delta"] for item, edges in parts]
            total = None if None in deltas else sum(deltas)
            groups.append({"name": name} | measured(f"group {name}") | {"sum": total})
        pairs = [(head["delta"], head["first_order"]) for head in heads]
        return {
            "contexts": len(self.contexts), "plain": results["plain"]["delta"], "heads": heads,
            "groups": groups, "proofs": dict(Counter(filter(None, proofs.values()))),
            "correlation": rank_correlation([pair for pair in pairs if None not in pair]),
        }  # fmt: skip

    def _mean(self, deltas: dict[int, float]) -> dict[str, float | None]:
        """Return the mean over contexts, and its standard error with texts as clusters."""
        sums: dict[int, Any] = defaultdict(lambda: torch.zeros(2, dtype=torch.float64))
        for number, delta in deltas.items():
            _, text, *_, weight = self.contexts[number]
            sums[text] += torch.tensor([weight, weight * delta], dtype=torch.float64)
        weights, totals = torch.stack([*sums.values()]).T
        mean, T = totals.sum() / weights.sum(), len(sums)
        variance = ((totals - weights * mean) / weights.sum()).square().sum() * T / max(1, T - 1)
        return {"delta": float(mean), "error": None if T == 1 else math.sqrt(variance)}


def checked(context: Context, common: Any) -> Context:
    """Return a context with its metric; its weight for loss and kl is its number of predictions."""
    inputs, metric = context.inputs, context.metric or common
    mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else torch.zeros(1)
    if mask is not None and not mask.all():
        raise ArgumentError(
            f"{type(inputs).__name__} as a context",
            expected="the model's arguments by name, of texts without padding",
        )
    is_common = metric in METRICS.values()
    return context._replace(
        metric=metric, weight=metrics.predictions(inputs) if is_common else context.weight
    )


@torch.no_grad()
def measure(context: Context, output: Any, unchanged: Any) -> float:
    """Return the metric; raise `RunError` if it is not a finite number."""
    try:
        value = float(context.metric(output, context.inputs, unchanged))
    except HeedfulError:
        raise
    except Exception as error:
        raise RunError(
            f"the metric raised {type(error).__name__}: {error}",
            expected="a function of (output, inputs, unchanged_output) that returns one number",
        ) from error
    if not math.isfinite(value):
        raise RunError(f"a metric of {value}", expected="a finite number")
    return value


def with_others(contexts: Sequence[Context], seed: int) -> list[Context]:
    """Draw another context of the same shapes for each; leave out contexts that have none."""
    pools, result = defaultdict(list), []
    shapes = [str([getattr(x, "shape", x) for x in c.inputs.values()]) for c in contexts]
    for shape, context in zip(shapes, contexts, strict=True):
        pools[shape].append(context.inputs)
    for number, context in enumerate(contexts):
        others = [inputs for inputs in pools[shapes[number]] if inputs is not context.inputs]
        drawn = random.Random(f"{seed} {number}").choice(others) if others else None
        if other := context.other or drawn:
            result.append(context._replace(other=other))
    return result


def _positions(text: str) -> int | slice:
    """Return the positions "*", "-1" or "0-3" (with both ends) as a number or a slice."""
    first, dash, last = text.rpartition("-")
    if first and dash:
        return slice(int(first), int(last) + 1)
    return slice(None) if text == "*" else int(text)


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Spearman's correlation; None if it is undefined."""
    columns = torch.tensor(pairs, dtype=torch.float64).reshape(-1, 2).T[:, :, None]
    ranks = (columns > columns.mT).sum(-1) + (columns == columns.mT).sum(-1) / 2
    correlation = float(torch.corrcoef(ranks.double())[0, 1]) if len(pairs) > 1 else math.nan
    return None if math.isnan(correlation) else round(correlation, 6)
