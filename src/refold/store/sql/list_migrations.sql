-- The migrations that were applied, in their order.
SELECT name FROM migration ORDER BY name
