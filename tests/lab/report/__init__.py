# SPDX-License-Identifier: GPL-2.0-or-later
"""The lab's report: a directory of runs becomes one page that needs nothing else."""
