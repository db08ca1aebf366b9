"""On executors: functions of users for groups of rows."""
