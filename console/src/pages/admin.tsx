export const VolumesPage = () => <p/>; export const SecretsPage = VolumesPage; export const KeysPage = VolumesPage; export const AuditPage = VolumesPage;
