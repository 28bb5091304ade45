"""Follow visitors of a site: what each visit was, and which pages each country reads most.

A visit is a session: clicks of one user with less than half an hour between them, so a click that comes late can bring two visits
together. Impatient people click twice: of clicks on one page within two seconds only the first counts. Where a user lives is what the
`users` topic had said when the click arrived; the two topics have no common order, so what follows from it is marked `arrival`.
"""

import watertable as wt

# fmt: off
app = wt.App("clickstream", owner="team:web", description="Visits, and the pages that each country reads most")
clicked = app.topic("clicks", key="user STRING", value="page STRING, at TIMESTAMP", timestamp="at").stream()
users = app.topic("users", key="user STRING", value="name STRING, country STRING").table().materialized_as("users")

clicks = clicked.dedupe(name="first_clicks", within=wt.seconds(2), by=("user", "page"), grace=wt.minutes(5))
visits = (clicked.group_by_key()
          .windowed_by(wt.sessions(gap=wt.minutes(30), grace=wt.minutes(5)))
          .agg(clicks=wt.count(), pages=wt.count_distinct("page"), entry=wt.first("page"))
          .materialized_as("visits"))

read = clicks.left_join(users, page="page", at="at", country="coalesce(right.country, 'unknown')")
views = (read.group_by("country", "page")
         .windowed_by(wt.tumbling(hours=1, grace=wt.minutes(5)))
         .agg(views=wt.count()).materialized_as("page_views"))
top = (views.group_by("country", hour="window_start")
       .agg(pages=wt.top_k(3, "views", "page"), views=wt.sum("views")).materialized_as("top_pages"))
# fmt: on
