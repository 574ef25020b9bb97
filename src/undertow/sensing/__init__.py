"""Matrix sensing in environments: laws, exact draws, growth of small components, bursts, and advice."""
