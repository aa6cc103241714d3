"""AllReduce in Python: every step averages all gradients exactly, as the built-in `allreduce` does."""

import quelea


class AllReduce(quelea.Algorithm):
    """Every step averages all gradients exactly."""

    name, reloadable = "my-allreduce", True

    def on_start(self, cx):
        self.average, self.pending = quelea.Average(), 0
        self.average.enter(cx)

    def on_bucket(self, cx, b):
        self.pending += 1
        self.average.start(cx, b, cx.grad[b])
        self.step_if_done(cx)

    def on_message(self, cx, sender, message):
        self.average.on_message(cx, sender, message, cx.grad)
        self.step_if_done(cx)

    def step_if_done(self, cx):
        for b in range(cx.buckets) if self.average.is_done() else ():
            self.average.finish(cx, b, cx.grad[b])
            cx.optimize(b)

    def on_optimized(self, cx, b):
        self.pending -= 1

    def is_ready(self):
        return self.pending == 0
