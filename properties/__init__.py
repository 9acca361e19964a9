"""How it is checked: the generator of operations, the judged run, and the properties that pytest and the gate share."""
