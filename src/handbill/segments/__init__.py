"""Who belongs together: rules over people, their members kept fresh, and what a decision needs to know of a person."""
