"""What /v1 speaks: the bodies of OpenAI's and Anthropic's APIs, and the way from each to one generation and back."""
