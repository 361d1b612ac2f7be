"""Drafters: they guess the tokens that follow, for the target model to check in one step."""
