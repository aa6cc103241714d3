"""D-PSGD in Python (Lian et al. 2017, Algorithm 1): gossip with the neighbours of the topology, which
overlaps the gradient, as the built-in `d-psgd` does."""

import quelea


class DPsgd(quelea.Algorithm):
    """Every step averages the model with the neighbours of the topology."""

    name, topology, awaits = "my-d-psgd", "mixing", "during-gradient"
    own_start, keeps_older_views, reads_gradient = True, True, False

    def on_start(self, cx):
        self.exchange = quelea.Exchange()
        self.exchange.enter(cx, cx.step)
        for b in range(cx.buckets) if cx.step < cx.steps else ():
            self.post(cx, b, cx.step)

    def post(self, cx, b, step):
        self.exchange.post(cx, cx.message(cx.params[b], step=step, bucket=b))

    def on_bucket(self, cx, b):
        if b == 0:
            self.exchange.begin(cx, cx.step)
        self.exchange.wait(cx, b)
        self.mix(cx, b)

    def mix(self, cx, b):
        gathered = self.exchange.gather(cx, b)
        if gathered is not None:
            gathered.mix(cx, cx.params[b])
            cx.optimize(b)

    def on_optimized(self, cx, b):
        if not cx.is_last_step:
            self.post(cx, b, cx.step + 1)
        self.exchange.finish()

    def on_message(self, cx, sender, message):
        b = self.exchange.on_message(cx, sender, message)
        if b is not None:
            self.mix(cx, b)

    def on_view(self, cx, old):
        self.exchange.on_view(cx)
        for b in range(cx.buckets):
            self.mix(cx, b)

    def is_ready(self):
        return self.exchange.is_over()

    def awaiting(self):
        return self.exchange.awaiting()
