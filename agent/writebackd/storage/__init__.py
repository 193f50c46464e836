# SPDX-License-Identifier: GPL-2.0-or-later
"""What stands behind a disk: RAID controllers, md, bcache, dm-writecache, dm-cache."""
