"""The interface of Google Text-to-Speech."""
