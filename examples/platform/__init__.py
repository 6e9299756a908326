"""A platform that shares nothing but the broker with the fleet."""
