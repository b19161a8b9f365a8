"""A fleet: tasks x bases x budgets x methods x boards from one plan file, as one graph of jobs.

plan      reads the plan file and lays out its jobs
request   the options of `edgevit fleet`
stages    does one job: derive, export, engine or bench
states    which jobs are done, run, failed or wait, by their folders
run       does the jobs that are not done, in worker processes
"""
