"""The paper: its claims checked against results, its tables and figures reproduced, its equations as printed."""
