"""D-PSGD in Python (Lian et al. 2017, Algorithm 1): gossip with the neighbours of the topology, which
overlaps the gradient, as the built-in `d-psgd` does."""

import quelea


class DPsgd(quelea.Algorithm):
    """Every step averages the model with the neighbours of the topology."""

    name, topology, awaits = "my-d-psgd", "mixing", "during-gradient"
    own_start, keeps_older_views, reads_gradient = True, True, False

    def on_start(self, cx):
        self.exchange = quelea.Exchange().enter(cx)
        self.post(cx, range(cx.buckets), cx.step)

    def post(self, cx, buckets, step):
        for b in buckets if step < cx.steps else ():
            self.exchange.post(cx, cx.message(cx.params[b], step=step, bucket=b))

    def on_bucket(self, cx, b):
        self.exchange.wait(cx, b)
        self.mix(cx, b)

    def on_message(self, cx, sender, message):
        self.mix(cx, self.exchange.on_message(cx, sender, message))

    def on_view(self, cx, old):
        self.exchange.on_view(cx)
        self.mix(cx, *range(cx.buckets))

    def mix(self, cx, *buckets):
        for b in buckets:
            if gathered := self.exchange.gather(cx, b):
                gathered.mix(cx, cx.params[b])
                cx.optimize(b)

    def on_optimized(self, cx, b):
        self.post(cx, [b], cx.step + 1)
        self.exchange.finish()

    def is_ready(self):
        return self.exchange.is_over()

    def awaiting(self):
        return self.exchange.awaiting()
