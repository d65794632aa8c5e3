"""The tokens of prompts, traced through a network: measures by prompt and over prompts, states, and sentences."""
