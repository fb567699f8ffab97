"""Where figures come from: the port, a platform that draws its figures, and Meta."""
