"""The messages of ORCA, the load reports of xDS, with the names and numbers of their public protos.

The protos are not compiled: packages that contain them replace modules of other packages.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import duration_pb2, text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

SERVICE = "xds.service.orca.v3.OpenRcaService"
METHOD = "StreamCoreMetrics"

_DOUBLES = {
    "cpu_utilization": 1,
    "mem_utilization": 2,
    "rps_fractional": 6,
    "eps": 7,
    "application_utilization": 9,
}
_MAPS = {"request_cost": 4, "utilization": 5, "named_metrics": 8}
_ENTRY = """
nested_type {{
  name: "{entry}"
  field {{ name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }}
  field {{ name: "value" number: 2 type: TYPE_DOUBLE label: LABEL_OPTIONAL }}
  options {{ map_entry: true }}
}}
field {{
  name: "{name}" number: {number} type: TYPE_MESSAGE label: LABEL_REPEATED
  type_name: ".xds.data.orca.v3.OrcaLoadReport.{entry}"
}}
"""
_REPORT = f"""
name: "xds/data/orca/v3/orca_load_report.proto"
package: "xds.data.orca.v3"
syntax: "proto3"
message_type {{
  name: "OrcaLoadReport"
  {
    "".join(
        f'field {{ name: "{name}" number: {number} type: TYPE_DOUBLE label: LABEL_OPTIONAL }}'
        for name, number in _DOUBLES.items()
    )
}
  field {{ name: "rps" number: 3 type: TYPE_UINT64 label: LABEL_OPTIONAL options {{ deprecated: true }} }}
  {
    "".join(
        _ENTRY.format(name=name, number=number, entry="".join(map(str.title, name.split("_"))) + "Entry")
        for name, number in _MAPS.items()
    )
}
}}
"""
_SERVICE = """
name: "xds/service/orca/v3/orca.proto"
package: "xds.service.orca.v3"
syntax: "proto3"
dependency: "google/protobuf/duration.proto"
dependency: "xds/data/orca/v3/orca_load_report.proto"
message_type {
  name: "OrcaLoadReportRequest"
  field {
    name: "report_interval" number: 1 type: TYPE_MESSAGE label: LABEL_OPTIONAL
    type_name: ".google.protobuf.Duration"
  }
  field { name: "request_cost_names" number: 2 type: TYPE_STRING label: LABEL_REPEATED }
}
service {
  name: "OpenRcaService"
  method {
    name: "StreamCoreMetrics"
    input_type: ".xds.service.orca.v3.OrcaLoadReportRequest"
    output_type: ".xds.data.orca.v3.OrcaLoadReport"
    server_streaming: true
  }
}
"""

POOL = DescriptorPool()
"""The descriptors. They are not in the default pool, to which another package may add the same files."""
POOL.AddSerializedFile(duration_pb2.DESCRIPTOR.serialized_pb)
for _text in (_REPORT, _SERVICE):
    POOL.AddSerializedFile(text_format.Parse(_text, FileDescriptorProto()).SerializeToString())

OrcaLoadReport: Any = GetMessageClass(POOL.FindMessageTypeByName("xds.data.orca.v3.OrcaLoadReport"))
OrcaLoadReportRequest: Any = GetMessageClass(POOL.FindMessageTypeByName("xds.service.orca.v3.OrcaLoadReportRequest"))
