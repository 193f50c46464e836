# SPDX-License-Identifier: GPL-2.0-or-later
"""What RAID tools would say of made-up machines, by the names of the fields that they have."""

from __future__ import annotations

import json
from typing import Any, Dict, Optional

GIB = 1 << 30


def storcli(data: Any) -> str:
    """The answer of the one controller."""
    answer = {"Command Status": {"Controller": 0, "Status": "Success"}, "Response Data": data}
    return json.dumps({"Controllers": [answer]}, indent=1)


def storcli_all(
    policy: str = "RWBD",
    bits: Any = 0,
    battery: Optional[str] = "Optimal",
    drive: str = "Onln",
    cache_mb: Any = 1715,
    **basics: Any,
) -> str:
    """One controller with a mirror (VD 238) and a parity array (VD 239)."""
    drives = [
        {"EID:Slt": f"64:{slot}", "State": "Onln", "DG": slot // 2} for slot in range(6)
    ]
    drives[1]["State"] = drive
    data: Dict[str, Any] = {
        "Basics": {"Model": "Modelled RAID 9", "PCI Address": "00:3b:00:00", **basics},
        "Status": {"BBU Status": bits},
        "HwCfg": {"BBU": "Present", "Current Size of FW Cache (MB)": cache_mb},
        "Scheduled Tasks": {"Next Battery Learn": "02/03/2031, 04:05:06"},
        "PD LIST": drives,
        "VD LIST": [
            {"DG/VD": "0/238", "Cache": policy, "Name": "system"},
            {"DG/VD": "1/239", "Cache": "NRWTD", "Name": "data"},
        ],
    }
    if battery is None:
        data["HwCfg"]["BBU"] = "Absent"
    else:
        data["Cachevault_Info"] = [{"Model": "CV", "State": battery}]
    return storcli(data)


REBUILD = storcli([
    {"Drive-ID": "/c0/e64/s0", "Progress%": "-", "Status": "Not in progress"},
    {"Drive-ID": "/c0/e64/s1", "Progress%": 37, "Status": "In progress"},
])  # fmt: skip
CHECK = storcli({"VD Operation Status": [
    {"VD": 238, "Operation": "CC", "Progress%": "-", "Status": "Not in progress"},
    {"VD": 239, "Operation": "CC", "Progress%": "8", "Status": "In progress"},
]})  # fmt: skip
PATROL = storcli({"Controller Properties": [
    {"Ctrl_Prop": "PR Mode", "Value": "Auto"},
    {"Ctrl_Prop": "PR Current State", "Value": "Active 4"},
]})  # fmt: skip
NO_CONTROLLER = json.dumps({"Controllers": [
    {"Command Status": {"Status": "Failure", "Description": "No Controller found"}}
]})  # fmt: skip


def ssacli(
    cache: str = "OK",
    battery: str = "OK",
    caching: str = "Enabled",
    bare: str = "Disabled",
    status: str = "OK",
    more: str = "",
) -> str:
    return f"""
Smart Array M1 in Slot 3
   Slot: 3
   Controller Status: OK
   Sensor ID: 0
      Location: Inlet
      Cache Status: of a sensor, which has none
   Cache Board Present: True
   Cache Status: {cache}
   Cache Ratio: 25% Read / 75% Write
   Total Cache Size: 4.0 GB
   Total Cache Memory Available: 3.5 GB
   No-Battery Write Cache: {bare}
   Battery/Capacitor Count: 1
   Battery/Capacitor Status: {battery}
   PCI Address (Domain:Bus:Device.Function): 0000:AF:00.0

   Port Name: 1I
         Port ID: 0
         Cache Status: of a port, which has none

   Array: A
      Interface Type: SAS
      Status: OK

      Logical Drive: 1
         Size: 1.0 TB
         Status: {status}
         Caching:  {caching}
         Disk Name: /dev/sdc          Mount Points: /srv
{more}
      physicaldrive 1I:1:1
         Status: Rebuilding
         LD Acceleration Method: Smart Path, if it were a logical drive
"""


def arcconf(
    setting: str = "On when protected by battery/ZMM", status: str = "On", backup: str = "Ready"
) -> str:
    return f"""Controllers found: 1
----------------------------------------------------------------------
Controller information
----------------------------------------------------------------------
   Controller Status                        : Optimal
   Controller Model                         : Modelled 8
   PCI Address (Domain:Bus:Device:Function) : 0:18:0:0
   --------------------------------------------------------
   Controller Version Information
   --------------------------------------------------------
   Status                                   : of a version
   --------------------------------------------------------
   Controller Cache Backup Unit Information
   --------------------------------------------------------
    Overall Backup Unit Status              : {backup}
         Supercap Status                    : {backup}
----------------------------------------------------------------------
Logical device information
----------------------------------------------------------------------
Logical Device number 0
   Logical Device name                      : one
   Write-cache setting                      : {setting}
   Write-cache status                       : {status}
   --------------------------------------------------------
   Logical Device segment information
   --------------------------------------------------------
   Group 0, Segment 0                       : Present
Logical Device number 2
   Write-cache setting                      : Disabled
   Write-cache status                       : Off
----------------------------------------------------------------------
Physical Device information
----------------------------------------------------------------------
      Device #0
         Write-cache status                 : of a drive
"""


ARCCONF_TASK = """Controllers found: 1
Logical device Task:
   Logical device                 : 2
   Task ID                        : 101
   Current operation              : Rebuild
   Status                         : In Progress
   Priority                       : High
   Percentage complete            : 44
"""


def megacli_battery(state: str = "Optimal", **flags: str) -> str:
    lines = {
        "Charging Status": "None", "Learn Cycle Active": "No", "Battery Pack Missing": "No",
        "Battery Replacement required": "No",
        **{key.replace("_", " "): value for key, value in flags.items()},
    }  # fmt: skip
    told = "\n".join(f"  {key}  : {value}" for key, value in lines.items())
    return (
        f"BBU status for Adapter: 0\n\nBatteryType: BBU\nBattery State: {state}\n"
        f"BBU Firmware Status:\n\n{told}\n\nBBU Properties for Adapter: 0\n\n"
        "  Next Learn time: Mon Feb  3 04:05:06 2031\n\nExit Code: 0x00\n"
    )


CAREFUL = "WriteBack, ReadAdaptive, Direct, No Write Cache if Bad BBU"


THROUGH = "WriteThrough, ReadAheadNone, Direct, No Write Cache if Bad BBU"


def megacli_volumes(policy: str = CAREFUL, default: str = THROUGH) -> str:
    return f"""
Adapter 0 -- Virtual Drive Information:
Virtual Drive: 0 (Target Id: 0)
Name                :
State               : Degraded
Default Cache Policy: {default}
Current Cache Policy: {policy}
Ongoing Progresses:
  Check Consistency        : Completed 13%, Taken 4 min.
Virtual Drive: 1 (Target Id: 5)
Current Cache Policy: WriteThrough, ReadAheadNone, Direct, No Write Cache if Bad BBU
"""


MEGACLI_PCI = """
PCI information for Controller 0
--------------------------------
Bus Number      : 3b
Device Number   : 0
Function Number : 0
"""

MDSTAT = """Personalities : [raid1] [raid6] [raid5] [raid4]
md7 : active raid1 sdb1[2] sda1[0]
      1000 blocks super 1.2 [2/1] [U_]
      [=>..........]  recovery = 12.5% (125/1000) finish=3.0min speed=51200K/sec

md8 : active raid5 sdd[0] sde[1] sdf[3] nvme0n1p1[4](J)
      2000 blocks super 1.2 level 5, 512k chunk, algorithm 2 [3/3] [UUU]

md9 : active (auto-read-only) raid1 sdg[0] sdh[1]
      1000 blocks super 1.2 [2/2] [UU]
      \tresync=PENDING

unused devices: <none>
"""
WRITECACHE = (
    "fast one: 0 2097152 writecache s 253:1 253:2 4096 2 high_watermark 60\n",
    "fast one: 0 2097152 writecache 0 1000 900 3\n",
)
DM_CACHE = (
    "slow: 0 2097152 cache 253:1 253:2 253:3 128 1 writeback smq 0\n",
    "slow: 0 2097152 cache 8 27/1024 128 500/4000 9 8 7 6 5 4 40 1 writeback"
    " 2 migration_threshold 2048 smq 0 rw -\n",
)
