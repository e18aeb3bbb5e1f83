"""Results for people: tables, curves and figures."""
