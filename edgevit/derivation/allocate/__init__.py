"""How large each part may be: budgets, shape policies, costs, and how one budget is spent on all."""
