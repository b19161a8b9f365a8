"""A budget in milliseconds, millijoules or images per second, met by measuring: allocate, build, measure, correct.

`rounds` says what measurements mean for the table and the next limit, and when to stop; `loop` goes round; `workshop`
makes plans into models, and the base beside them; `in_turns` measures them against it; `run` is the whole of it, and
`request` what is asked.
"""
