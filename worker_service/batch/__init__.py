"""What a step computes on: the states of the requests and the frozen inputs made from them."""
