"""The choice of the sequences of a round, and of their pages, slots and adapters. No kernel is launched here."""
