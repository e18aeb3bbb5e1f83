"""Who meets whom, when and for how long."""

from wayfare.contacts.draw import draw_plan, plan_from_meetings, plan_from_motion, plans_from_motion
from wayfare.contacts.plan import ContactPlan, Opportunities, opportunities

__all__ = [
    "ContactPlan",
    "Opportunities",
    "draw_plan",
    "opportunities",
    "plan_from_meetings",
    "plan_from_motion",
    "plans_from_motion",
]
