"""The descriptors of contracts, apart from the default pool.

A process may also import the published package of a contract, which adds messages of the same names to the default
pool. `make protos` lets the stubs of contracts use this one.
"""

from google.protobuf.descriptor_pool import DescriptorPool

POOL = DescriptorPool()
