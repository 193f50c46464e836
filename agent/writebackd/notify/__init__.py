# SPDX-License-Identifier: GPL-2.0-or-later
"""Notifications of alerts: journal, Alertmanager, a program, mail."""
