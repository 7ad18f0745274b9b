"""The sections of the page: what a paper claimed, how it is measured again, what is shown, and what the figures say about the claim.

Every verdict is computed from the figures, so that a page of another machine says what is true there."""

from sections.copies import NON_TEMPORAL, OFFLOAD
from sections.messages import CALLS, ZERO_COPY
from sections.monitor import MONITOR
from sections.registration import CACHE, REGISTRATION

SECTIONS = [ZERO_COPY, CALLS, NON_TEMPORAL, OFFLOAD, REGISTRATION, CACHE, MONITOR]
