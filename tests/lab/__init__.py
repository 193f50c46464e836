# SPDX-License-Identifier: GPL-2.0-or-later
"""A modelled RAID disk, load generators and the demo that runs on them."""
