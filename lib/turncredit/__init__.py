"""Turn-level credit assignment for long-horizon agentic RL."""

__version__ = "0.1.0"
