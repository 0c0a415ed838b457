"""From the output back to the input: which channels are needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from .channels import Channels, Rule


@dataclass(frozen=True)
class Analysis:
    """For each node of a graph its rule, what is known of its channels, and how many it reads of each source.

    With `maps`, the values of tensors for one example, a channel that does not carry the input is known as it is there,
    whatever it is at the borders; its constant is then a zero to which the map is added.
    """

    rules: dict[fx.Node, Rule]
    facts: dict[fx.Node, Channels]
    sizes: dict[fx.Node, list[int]]
    maps: Mapping[fx.Node, Tensor] | None = None

    def inputs(self, rule: Rule) -> list[Channels]:
        """What an operation sees of its sources."""
        seen = zip(rule.sources, rule.axes, self.sizes[rule.node], strict=True)
        return [self._as_map(source, self.facts[source].along(axis, size)) for source, axis, size in seen]

    def _as_map(self, node: fx.Node, seen: Channels) -> Channels:
        known = self.maps is not None and node in self.maps and seen.axis is not None
        return _zero_if_not_carrying(seen) if known else seen

    def fixed(self, maps: Mapping[fx.Node, Tensor]) -> Analysis:
        """The same where only examples of one size go in."""
        facts = dict(self.facts)
        for node, rule in self.rules.items():
            if facts[node].axis is not None and all(each in maps for each in (node, *rule.sources)):
                facts[node] = _zero_if_not_carrying(facts[node])
        return Analysis(self.rules, facts, self.sizes, maps)

    def keep(self) -> dict[fx.Node, Tensor]:
        """The channels that the smaller network must have, from its output backwards; at least one where it is read."""
        kept: dict[fx.Node, Tensor] = {}
        for node, rule in reversed(self.rules.items()):
            if node.op in ("output", "placeholder") and node not in kept:
                kept[node] = torch.zeros_like(self.facts[node].carries)
            if node in kept:
                kept[node] = rule.widen(_at_least_one(kept[node], self.facts[node]))
                self._spread(rule, rule.needs(self.inputs(rule), self.facts[node], kept[node]), kept)
        return kept

    def relevant(self) -> dict[fx.Node, Tensor]:
        """The channels that carry the input of the network and that its output depends on."""
        zero = Analysis(
            self.rules, {node: _zero_if_not_carrying(fact) for node, fact in self.facts.items()}, self.sizes
        )
        wanted: dict[fx.Node, Tensor] = {}
        for node, rule in reversed(self.rules.items()):
            if node.op == "output":
                wanted[node] = torch.ones_like(self.facts[node].carries)
            if node in wanted:
                zero._spread(rule, rule.matters(zero.inputs(rule), zero.facts[node], wanted[node]), wanted)
        return {node: flags & self.facts[node].carries for node, flags in wanted.items()}

    def _spread(self, rule: Rule, needs: Sequence[Tensor | None], flags: dict[fx.Node, Tensor]) -> None:
        for source, axis, need in zip(rule.sources, rule.axes, needs, strict=True):
            if need is not None:
                fact = self.facts[source]
                need = need if axis == fact.axis else torch.ones_like(fact.carries)
                flags[source] = flags[source] | need if source in flags else need


def _at_least_one(kept: Tensor, fact: Channels) -> Tensor:
    """A tensor that is read has a channel; a constant one asks least of what comes before."""
    if kept.any() or not len(kept):
        return kept
    kept = kept.clone()
    kept[int((~fact.varies).int().argmax())] = True
    return kept


def _zero_if_not_carrying(fact: Channels) -> Channels:
    return Channels(fact.axis, torch.where(fact.carries, torch.nan, 0.0).double(), fact.carries)
