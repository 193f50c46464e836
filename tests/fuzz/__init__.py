# SPDX-License-Identifier: GPL-2.0-or-later
"""Coverage-guided fuzzing of whatever reads what others wrote; not part of a usual run."""
