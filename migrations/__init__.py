"""Alembic migrations. The code now running must work before and after each of them."""
