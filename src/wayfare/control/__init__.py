"""The Lyapunov controller: closed forms, the virtual energy queue, the automatic weight and budgets."""
