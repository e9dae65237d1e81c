"""``fd-routing list``: the stores that installed packages offer. Imports no plugin and works whatever is broken."""

from __future__ import annotations

import os
import re
from collections import Counter

import click

from fastdeploy_routing_plugins.cli.options import common_options
from fastdeploy_routing_plugins.cli.output import Output
from fastdeploy_routing_plugins.discovery import Candidate, scan
