"""Remind people who have closed the app, and know how often each of them was reminded lately.

A phone says when its user opens or closes the app; a scheduler sends a tick for a user when there is something to tell. Whoever has the
app open sees it there. Whoever has closed it gets a notification. Of a user whose phone has never said anything nobody knows whether
they have the app at all: they are left alone, and counted.

What a tick meets depends on what had arrived by then: the two topics have no common order. So `notifications` is marked `arrival`.
"""

import watertable as wt

# fmt: off
app = wt.App("presence", owner="team:mobile", description="Notifications for users who have closed the app")
phones = app.topic("phones", key="user STRING", value="event STRING, at TIMESTAMP", timestamp="at").stream()
ticks = app.topic("ticks", key="user STRING", value="message STRING, at TIMESTAMP", timestamp="at").stream()

presence = (phones.expect("known_event", "event IN ('open', 'close')")
            .map_values(is_open="event = 'open'", since="at")
            .to_table().materialized_as("presence"))

met = ticks.left_join(presence, message="message", at="at", is_open="right.is_open", closed_at="right.since")
notifications = (met.expect("known_user", "is_open IS NOT NULL", on_fail="drop")
                 .filter_not("is_open")
                 .map_values(message="message", hours_away="timestampdiff(HOUR, closed_at, at)"))
notifications.to("notifications")

notified = (notifications.group_by_key()
            .windowed_by(wt.hopping(minutes=10, every=wt.minutes(1), grace=wt.minutes(1)))
            .agg(notifications=wt.count(), last_message=wt.last("message")).materialized_as("notified"))
# fmt: on
