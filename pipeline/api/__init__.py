"""The contracts that operators are written against: errors, records, protocols, meters, forecasts."""

from pipeline.api.secret import Secret as Secret
