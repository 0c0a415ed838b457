"""`python -m flipout_lab`"""

from .cli import process

if __name__ == "__main__":  # and not in the workers of a sweep, which import it too
    process()
