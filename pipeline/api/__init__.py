"""The contracts that operators are written against: errors, records, protocols, meters, forecasts."""
