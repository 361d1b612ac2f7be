"""Requests in, text out: the loop that runs steps and the engine the APIs see."""
