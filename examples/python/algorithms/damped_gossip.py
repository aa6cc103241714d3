"""A new algorithm in Python, of messages and tensors alone: a step of the optimizer, then a part of the way
to the neighbours' mean. With the rate 1 it is adapt-then-combine.

    upon g[b]:                 x_i[b] ← x_i[b] − η·Opt(g[b]);  send x_i[b]
    upon x_j[b] of this step:  x_i[b] ← x_i[b] + γ·Σ_j W_ij (x_j[b] − x_i[b])

This script is also the `quelea` command with one algorithm more: `python damped_gossip.py list algorithms`.
"""

import sys

import quelea


class DampedGossip(quelea.Algorithm):
    """Every step moves the model a part of the way to the neighbours' mean."""

    options, topology = {"gamma": 0.8}, "mixing"
    own_start, keeps_older_views, reads_gradient = True, True, False

    def on_start(self, cx):
        # Messages that came, by step and bucket, then by rank: a neighbour may be a step ahead.
        self.received, self.sent, self.pending = {}, set(), 0

    def on_bucket(self, cx, b):
        self.pending += 1
        cx.optimize(b)

    def on_optimized(self, cx, b):
        message = cx.message(cx.params[b], bucket=b)
        for rank in cx.outgoing():
            cx.send(rank, message)
        self.sent.add(b)
        self.mix(cx, b)

    def on_message(self, cx, sender, message):
        self.received.setdefault((message.step, message.bucket), {})[sender] = message
        self.mix(cx, message.bucket)

    def mix(self, cx, b):
        weights = {rank: self.gamma * weight for rank, weight in cx.incoming()}
        theirs = self.received.get((cx.step, b), {})
        if b not in self.sent or weights.keys() - theirs.keys() - {cx.rank}:
            return
        weights[cx.rank] += 1.0 - self.gamma
        cx.mix(cx.params[b], weights, theirs)
        self.received.pop((cx.step, b), None)
        self.sent.remove(b)
        self.pending -= 1

    def on_view(self, cx, old):
        for b in sorted(self.sent):
            self.mix(cx, b)

    def is_ready(self):
        return self.pending == 0


if __name__ == "__main__":
    sys.exit(quelea.main(algorithms=[DampedGossip]))
