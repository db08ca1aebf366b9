"""The group of masters, as somebody outside of it sees it. Nothing here joins the group or commits.

Assumes that masters are static members: the group knows each of them by its slot.
"""

from __future__ import annotations

from contextlib import closing

from confluent_kafka import TopicPartition

from ..clock import Deadline
from ..log import GroupMember, MasterGroup
from .clients import REQUEST_S_MIN, KafkaClients
from .settings import KafkaSettings


def read_group(clients: KafkaClients, deadline: Deadline) -> MasterGroup:
    """Return the members of the group, and how far they have come.

    Raises:
        Unavailable: the broker does not answer.
    """
    settings = clients.settings
    if settings.embedded:  # the mock broker has no groups to tell of
        return MasterGroup()
    members = [
        GroupMember(
            member.group_instance_id or member.member_id,
            member.host.removeprefix("/"),
            tuple(sorted(place.partition for place in member.assignment.topic_partitions)),
        )
        for member in clients.members(settings.masters_group, deadline)
    ]
    places = clients.places(settings.events_topic, None)
    ends = {place.partition: clients.written_offset(place) for place in places}
    members.sort(key=lambda member: member.slot)
    return MasterGroup(tuple(members), _decided(clients, settings, sorted(ends), deadline), ends)


def _decided(
    clients: KafkaClients, settings: KafkaSettings, numbers: list[int], deadline: Deadline
) -> dict[int, int]:
    """Return the offsets that the group has committed. Those of an open step do not count, and are
    not waited for.

    An admin client must not ask: it kills the process if the coordinator has changed meanwhile.
    """
    asked = [TopicPartition(settings.events_topic, number) for number in numbers]
    group, limit_s = settings.masters_group, max(REQUEST_S_MIN, deadline.left_s)
    outside = clients.consumer(group, isolation="read_uncommitted")
    with closing(outside), clients.translated(f"asking for the offsets of {group}"):
        places = outside.committed(asked, limit_s)
    return {place.partition: place.offset for place in places if place.offset >= 0}
