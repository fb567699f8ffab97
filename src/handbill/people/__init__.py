"""Who stands behind the ids: edges become people, sets become properties, in any order, and can be undone."""
