"""Cannot be loaded."""


class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("weights.bin is missing.\nPut it beside model.py")
