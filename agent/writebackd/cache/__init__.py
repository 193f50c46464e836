# SPDX-License-Identifier: GPL-2.0-or-later
"""What stands behind a disk, as it says itself: RAID controllers, md, bcache, dm-writecache."""
