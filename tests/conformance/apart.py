"""Products whose operands a kernel finds through a table, by whatever way they were asked for."""


def apart(enqueue):
    """The `enqueue` of a CUDA launcher, for stacks as if each of their products lay by itself.

    Those of no terms and those with a bias are left to the launches that they always have.
    """

    def tabled(self, work, stream):
        self._apart = work.a.shape[-1] > 0 and work.bias is None
        try:
            enqueue(self, work, stream)
        finally:
            self._apart = False  # launchers are kept

    return tabled
