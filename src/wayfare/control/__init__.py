"""The Lyapunov controller: closed forms and the virtual energy queue."""
